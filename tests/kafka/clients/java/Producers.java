import com.fasterxml.jackson.databind.JsonNode;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Commands that write. */
final class Producers {
  private Producers() {}

  static void register(Map<String, Main.Command> commands) {
    commands.put("produce", Producers::produce);
    commands.put("produce_many", Producers::produceMany);
    commands.put("transaction", Producers::transaction);
  }

  private static KafkaProducer<byte[], byte[]> producer(JsonNode facts, Map<String, Object> more) {
    Map<String, Object> settings = Settings.of(facts);
    settings.putAll(more);
    return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
  }

  private static Map<String, Object> settings(JsonNode facts) {
    return Map.of(
        "acks", facts.get("acks").asText(),
        "compression.type", facts.path("codec").asText("none"),
        "enable.idempotence", facts.path("idempotent").asBoolean(false),
        "linger.ms", 5,
        "max.block.ms", 10000,
        "request.timeout.ms", 5000,
        "delivery.timeout.ms", (int) (Settings.seconds(facts) * 1000));
  }

  private static Object produce(JsonNode facts) throws Exception {
    List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
    for (JsonNode item : facts.get("records")) {
      JsonNode time = item.path("timestamp");
      var record = new ProducerRecord<>(
          facts.get("topic").asText(),
          item.get("partition").asInt(),
          time.isNumber() ? Long.valueOf(time.asLong()) : null,
          Settings.unpacked(item.get("key")),
          Settings.unpacked(item.get("value")));
      for (JsonNode header : item.path("headers")) {
        record.headers().add(header.get(0).asText(), Settings.unpacked(header.get(1)));
      }
      records.add(record);
    }
    return send(facts, records, 0);
  }

  private static Object produceMany(JsonNode facts) throws Exception {
    List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
    int partitions = facts.get("partitions").asInt();
    for (int i = 0; i < facts.get("count").asInt(); i++) {
      byte[] value = String.valueOf(i).getBytes(StandardCharsets.UTF_8);
      records.add(new ProducerRecord<>(facts.get("topic").asText(), i % partitions, null, value));
    }
    return send(facts, records, facts.path("pause_ms").asLong(0));
  }

  private static Object send(JsonNode facts, List<ProducerRecord<byte[], byte[]>> records, long pause)
      throws Exception {
    boolean unanswered = facts.get("acks").asInt() == 0;
    try (KafkaProducer<byte[], byte[]> producer = producer(facts, settings(facts))) {
      List<Future<RecordMetadata>> futures = new ArrayList<>();
      for (var record : records) {
        futures.add(producer.send(record));
        if (pause > 0 && futures.size() % 20 == 0) {
          Thread.sleep(pause);
        }
      }
      producer.flush();
      List<Object> places = new ArrayList<>();
      for (Future<RecordMetadata> future : futures) {
        RecordMetadata place = future.get();
        places.add(unanswered ? null : List.of(place.partition(), place.offset()));
      }
      return places;
    }
  }

  private static Object transaction(JsonNode facts) {
    Map<String, Object> more = Map.of("transactional.id", facts.get("id").asText(), "max.block.ms", 10000);
    try (KafkaProducer<byte[], byte[]> producer = producer(facts, more)) {
      producer.initTransactions();
    }
    return null;
  }
}
