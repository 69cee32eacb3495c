/** The page of the shop: what customers owe, from the consumer, and from then on each receipt as it is written. */
import { connect, TopicsError } from "topics-sdk/browser";

interface Receipt {
  order: string;
  customer: string;
  total: number;
}

interface Totals {
  customers: Record<string, number>;
  seq: number;
}

const SHOWN = 20;
const topics = connect(); // the origin of the page: the consumer hands the watch on to the server

const totals = (await (await fetch("/totals")).json()) as Totals;
for (const customer of Object.keys(totals.customers)) show(customer);

const watching = topics.watch({ "receipts*": 0 }, { cursor: totals.seq ? { receipts: totals.seq } : {} });
try {
  for await (const event of watching) {
    switch (event.kind) {
      case "record":
        add(event.json<Receipt>());
        break;
      case "gap":
        say(`receipts ${event.firstSeq} to ${event.lastSeq} are lost (${event.reason})`);
        break;
      case "caught_up":
        say("live");
        break;
      case "topic_deleted":
      case "advice":
        say(event.kind);
    }
  }
} catch (error) {
  say(error instanceof TopicsError ? `${error.reason}: reload the page` : String(error));
}

function add(receipt: Receipt): void {
  totals.customers[receipt.customer] = (totals.customers[receipt.customer] ?? 0) + receipt.total;
  show(receipt.customer);
  const item = document.createElement("li");
  item.textContent = `${receipt.customer}: ${euros(receipt.total)} (${receipt.order})`;
  const list = byId("receipts");
  list.prepend(item);
  while (list.children.length > SHOWN) list.lastChild?.remove();
}

function show(customer: string): void {
  const id = `of-${customer}`;
  let row = document.getElementById(id);
  if (!row) {
    row = document.createElement("tr");
    row.id = id;
    byId("totals").append(row);
  }
  const cells = [customer, euros(totals.customers[customer] ?? 0)].map((text) => {
    const cell = document.createElement("td");
    cell.textContent = text;
    return cell;
  });
  row.replaceChildren(...cells);
}

function say(text: string): void {
  byId("state").textContent = text;
}

function euros(cents: number): string {
  return `${(cents / 100).toFixed(2)} €`;
}

function byId(id: string): HTMLElement {
  const element = document.getElementById(id);
  if (!element) throw new Error(`the page has no #${id}`);
  return element;
}
