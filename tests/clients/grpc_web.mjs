// The generated TypeScript client over gRPC-Web, in Node and in a page. `lib` is sdk/generated/ts/lib.
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcWebTransport } from "@connectrpc/connect-web";
import { TopicsService, WatchService } from "./lib/index.js";

const text = (data) => new TextDecoder().decode(data);

/** Writes, reads, follows and fails; what came of it, as JSON. */
export async function visit(baseUrl, topic, key) {
  const transport = createGrpcWebTransport({ baseUrl, defaultTimeoutMs: 20000 });
  const topics = createClient(TopicsService, transport);
  const watches = createClient(WatchService, transport);
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const failed = async (call) => {
    try {
      await call();
      return "no error";
    } catch (error) {
      const known = ConnectError.from(error);
      return [Code[known.code], known.rawMessage, known.details.map((detail) => detail.type)];
    }
  };

  const appended = await topics.append(
    { topic, records: ["a", "b"].map((data) => ({ data: new TextEncoder().encode(JSON.stringify(data)) })) },
    { headers },
  );
  const followed = [];
  for await (const { frame } of watches.watch({ subscription: { topics: { [topic]: {} } } }, { headers })) {
    followed.push(frame.kind.case);
    if (frame.kind.case === "caughtUp") break;
  }
  return {
    seqs: appended.seqs.map(Number),
    followed,
    unknown: await failed(() => topics.getTopic({ topic: "no such 50% \u00e4" }, { headers })),
    late: await failed(() => topics.diff({ topic, fromSeq: 2n, waitMs: 10000 }, { headers, timeoutMs: 300 })),
    stranger: await failed(() => topics.getTopic({ topic }, { headers: { authorization: "Bearer wrong" } })),
    datas: (await topics.diff({ topic, fromSeq: 0n }, { headers })).records.map((record) => text(record.data)),
  };
}
