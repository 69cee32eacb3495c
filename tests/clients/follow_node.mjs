// Prints what the page's `follow` is told by a server, one JSON array a line: node follow_node.mjs PAGE_CODE SERVER TOPIC
import { pathToFileURL } from "node:url";
import { EventSource } from "eventsource";

const [code, server, topic] = process.argv.slice(2);
const { follow } = await import(pathToFileURL(code));
console.info = () => {};
follow({
  server,
  topics: { [topic]: {} },
  seen: (event, data) => console.log(JSON.stringify([event, data])),
  openStream: (url) => new EventSource(url),
});
