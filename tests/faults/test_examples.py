"""Each program of `examples/` does its work completely, although it is killed in the middle and started again."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.examples import EXAMPLES, Shop
from faults.processes import until

import lakemq

pytestmark = pytest.mark.slow


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop_ = Shop(tmp_path)
    yield shop_
    shop_.stop()


@pytest.mark.extended
def test_a_killed_producer_service_publishes_every_file_once(shop: Shop) -> None:
    shop.serve()
    outbox, expected = shop.folder / "outbox", Counter[str]()
    outbox.mkdir()
    for number in range(1, 31):
        orders = [{"id": f"{number}-{n}", "customer": f"customer-{n}"} for n in range(3)]
        expected.update(json.dumps(order) for order in orders)
        (outbox / f"{number:06}.jsonl").write_text("\n".join(json.dumps(order) for order in orders))
    service = shop.start("producer_service", str(outbox))
    service.wait_for("000004.jsonl")
    service.kill()
    # killed after the publish and before the file was deleted
    (outbox / "000001.jsonl").write_text(json.dumps({"id": "1-0", "customer": "customer-0"}))
    second_run = shop.start("producer_service", str(outbox))
    until(lambda: not any(outbox.iterdir()), "every file was published and deleted")
    assert "000001.jsonl: published before" in second_run.text()
    assert shop.read("orders") == expected


@pytest.mark.extended
def test_the_other_members_write_the_invoices_of_a_killed_one(shop: Shop) -> None:
    invoices = shop.folder / "invoices"
    shop.serve()
    members = [shop.start("consumer_group", str(invoices)) for _ in range(2)]
    until(lambda: len(owners(shop, "invoicing")) == 2, "both members have partitions")
    orders = shop.order(200)
    members[0].wait_for("invoices")
    members[0].kill()
    orders += shop.order(200, prefix="later")
    until(lambda: len([*invoices.glob("*.txt")]) == len(orders), "an invoice for each order")
    texts = {file.stem: file.read_text() for file in invoices.glob("*.txt")}
    assert texts == {order: f"Invoice for order {order} of {customer}\n" for order, customer in orders_of(shop)}
    assert set(texts) == set(orders)


@pytest.mark.extended
def test_a_killed_pipeline_that_runs_again_ships_every_order_once(shop: Shop) -> None:
    orders = shop.order(400)
    run = shop.start("exactly_once_pipeline")
    run.wait_for("100 shipped")
    run.kill()
    shop.start("exactly_once_pipeline").wait_for_success()
    assert shop.read("shipments") == Counter(json.dumps({"ship": order}) for order in orders)
    last = shop.start("exactly_once_pipeline")  # nothing is left, and nothing is shipped twice
    last.wait_for_success()
    assert last.text() == ""


@pytest.mark.extended
def test_every_unpaid_order_gets_one_reminder_though_the_scheduler_is_killed(shop: Shop) -> None:
    orders, delay_ms = shop.order(60), 2_000
    shop.serve()
    run = shop.start("delayed_reminders", "schedule", str(delay_ms))
    run.wait_for("scheduled")
    run.kill()
    mailers = [shop.start("delayed_reminders", "send")]
    second_run = shop.start("delayed_reminders", "schedule", str(delay_ms))
    second_run.wait_for_success()
    shop.order(1, prefix="paid")
    shop.start("delayed_reminders", "schedule", "3600000").wait_for_success()
    payment = shop.start("delayed_reminders", "pay", "paid-0")
    payment.wait_for_success()
    assert payment.text() == "paid-0: cancelled\n"
    expected = Counter(f"Please pay {order}." for order in orders)
    until(lambda: shop.read("reminders").total() >= len(expected), "all reminders are due")
    assert shop.read("reminders") == expected
    mailers[0].wait_for("Please pay")
    mailers[0].kill()
    mailers.append(shop.start("delayed_reminders", "send"))

    def count_sent_mails() -> Counter[str]:
        lines = [line for mailer in mailers for line in mailer.text().splitlines()]
        return Counter(line.split(": ")[1] for line in lines)

    # mails that the killed process had not acknowledged are sent once more
    until(lambda: count_sent_mails().keys() == expected.keys(), "all reminders are sent")
    assert max(count_sent_mails().values()) <= 2


@pytest.mark.extended
def test_a_killed_packer_leaves_no_order_unpacked_and_rejected_ones_come_back_once(shop: Shop) -> None:
    orders = shop.order(60) + shop.order(6, prefix="odd", product="an unknown tea")
    catalog = shop.folder / "products.json"
    catalog.write_text(json.dumps(["tea"]))
    shop.serve()
    first = shop.start("dead_letters", "pack")
    first.wait_for("packed")
    first.kill()
    second = shop.start("dead_letters", "pack")

    def count_packed_orders() -> Counter[str]:
        lines = (first.text() + second.text()).splitlines()
        return Counter(line.removeprefix("packed ") for line in lines if line.startswith("packed "))

    until(lambda: len(count_packed_orders()) >= 60, "all orders of a known product are packed")
    until(lambda: "orders.dlq" in topics(shop) and shop.read("orders.dlq").total() == 6, "six are rejected")
    new_catalog = shop.folder / "new.json"
    new_catalog.write_text(json.dumps(["tea", "an unknown tea"]))
    new_catalog.replace(catalog)  # at once: a packer that reads half a file dies
    redrives = [shop.start("dead_letters", "redrive") for _ in range(2)]  # two at once
    for redrive in redrives:
        redrive.wait_for_success()
    assert sum(int(redrive.text().split()[0]) for redrive in redrives) == 6
    until(lambda: len(count_packed_orders()) == len(orders), "the rejected orders are packed")
    packed = count_packed_orders()
    assert packed.keys() == set(orders)
    assert [packed[order] for order in orders[60:]] == [1] * 6


def owners(shop: Shop, group: str) -> set[str]:
    """Return the members that have partitions of a group; none before the group exists, or during a handoff."""
    with lakemq.connect(shop.path) as mq:
        if group not in mq.groups.list():
            return set()
        partitions = mq.groups.assignments(group)
    is_settled = all(partition.state == "ready" for partition in partitions)
    return {partition.owner for partition in partitions} if is_settled else set()


def orders_of(shop: Shop) -> list[tuple[str, str]]:
    """Return id and customer of each order."""
    orders = map(json.loads, shop.read("orders"))
    return [(order["id"], order["customer"]) for order in orders]


def topics(shop: Shop) -> list[str]:
    with lakemq.connect(shop.path) as mq:
        return [topic.topic for topic in mq.topics.list()]


def test_every_example_has_a_test() -> None:
    tests = Path(__file__).read_text() + (Path(__file__).parents[1] / "spark/test_example.py").read_text()
    assert [file.stem for file in EXAMPLES.glob("*.py") if f'"{file.stem}"' not in tests] == []
