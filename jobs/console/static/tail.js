"use strict";

// Follows a topic: asks every second for the page that the link "Newer" leads to, and puts its rows on top.
// Without a script, the link does the same.

const MOST_ROWS = 200;
const LONGEST_MS = 30_000;
const MOST_FAILURES = 10;
const state = document.createElement("p");
state.setAttribute("role", "status");
const button = document.createElement("button");
button.type = "button";
document.querySelector(".actions").append(button);
document.querySelector(".actions").after(state);
let isRunning = true;
let isLooking = false;
let failures = 0;
let nextLookMs = 0;

function show(text) {
  button.textContent = isRunning ? "Stop" : "Continue";
  state.className = isRunning ? "dim" : "notice";
  if (state.textContent !== text) state.textContent = text; // a screen reader reads each change
}

const findLink = (page) => page.querySelector('.actions a[href*="/tail?"]');
const findTable = (page) => [...page.querySelectorAll("main section")].pop();

// Returns the next page. The error of a failure says whether another look would fail as well.
async function readNext() {
  const answer = await fetch(findLink(document).href, { signal: AbortSignal.timeout(LONGEST_MS) });
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (answer.ok && findLink(page)) return page;
  const reason = ([...page.querySelectorAll(".notice")].pop() ?? page.body).textContent.trim().slice(0, 500);
  throw Object.assign(new Error(`${answer.status} ${reason}`), { isFinal: answer.status < 500 });
}

async function look() {
  const page = await readNext();
  if (!isRunning) return; // "Continue" reads it again
  findLink(document).href = findLink(page).getAttribute("href");
  const rows = findTable(page).querySelectorAll("tbody tr");
  const body = findTable(document).querySelector("tbody");
  if (body) body.prepend(...rows);
  else if (rows.length) findTable(document).replaceWith(findTable(page));
  while (body && body.rows.length > MOST_ROWS) body.lastElementChild.remove();
  const passed = [...page.querySelectorAll("main .notice")].map((notice) => notice.textContent).join(" ");
  show(`Follows the topic. The newest ${MOST_ROWS} messages stay here. ${passed}`);
}

async function tick() {
  const beginMs = performance.now();
  if (!isRunning || isLooking || document.hidden || beginMs < nextLookMs) return;
  isLooking = true;
  let pauseMs = 0;
  try {
    await look();
    failures = 0;
  } catch (error) {
    failures += 1;
    pauseMs = Math.min(LONGEST_MS, 1000 * 2 ** failures);
    if (error.isFinal || failures > MOST_FAILURES) isRunning = false;
    if (!isRunning) show(`Stopped: ${error.message}`);
    else show(`Looks again in ${pauseMs / 1000} s (${failures} of ${MOST_FAILURES}): ${error.message}`);
  } finally {
    isLooking = false;
    // a slow console gets as long a rest as the look took
    nextLookMs = performance.now() + Math.max(pauseMs, performance.now() - beginMs);
  }
}

button.addEventListener("click", () => {
  isRunning = !isRunning;
  failures = nextLookMs = 0;
  show(isRunning ? "Follows the topic." : "Stopped.");
});
setInterval(tick, 1000);
show("Follows the topic.");
