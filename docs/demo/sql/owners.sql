-- Groups: who had which partition, and when?
SELECT partition, state, owner, since, until, reason
FROM assignment_history WHERE `group` = 'delay-alerts' ORDER BY partition, since
