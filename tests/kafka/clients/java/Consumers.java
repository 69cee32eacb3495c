import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Commands that read, with and without a group. */
final class Consumers {
  static final Duration POLL = Duration.ofMillis(200);

  private Consumers() {}

  static void register(Map<String, Main.Command> commands) {
    commands.put("read", Consumers::read);
    commands.put("consume", Consumers::consume);
  }

  private static KafkaConsumer<byte[], byte[]> consumer(Map<String, Object> settings) {
    settings.put("enable.auto.commit", false);
    settings.put("default.api.timeout.ms", 15000);
    settings.put("request.timeout.ms", 10000);
    return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
  }

  /** A consumer in the group of the command. */
  static KafkaConsumer<byte[], byte[]> member(JsonNode facts) {
    Map<String, Object> settings = Settings.of(facts);
    settings.put("group.id", facts.get("group").asText());
    settings.put("auto.offset.reset", "earliest");
    settings.put("fetch.max.wait.ms", 100);
    settings.put("metadata.max.age.ms", 1000);
    settings.put("allow.auto.create.topics", false);
    String protocol = facts.get("protocol").asText();
    settings.put("group.protocol", protocol.equals("consumer") ? "consumer" : "classic");
    if (!protocol.equals("consumer")) {
      Class<?> strategy = protocol.equals("range") ? RangeAssignor.class : CooperativeStickyAssignor.class;
      settings.put("partition.assignment.strategy", strategy.getName());
      settings.put("session.timeout.ms", facts.path("session_ms").asInt(10000));
      settings.put("heartbeat.interval.ms", 500);
    }
    if (facts.has("instance")) {
      settings.put("group.instance.id", facts.get("instance").asText());
    }
    return consumer(settings);
  }

  private static Object read(JsonNode facts) {
    String reset = facts.path("reset").asText("error");
    Map<String, Object> settings = Settings.of(facts);
    settings.put("auto.offset.reset", reset.equals("error") ? "none" : reset.toLowerCase(Locale.ROOT));
    settings.put("allow.auto.create.topics", false);
    try (KafkaConsumer<byte[], byte[]> consumer = consumer(settings)) {
      Map<TopicPartition, JsonNode> start = new HashMap<>();
      facts.get("start").properties().forEach(entry ->
          start.put(new TopicPartition(facts.get("topic").asText(), Integer.parseInt(entry.getKey())), entry.getValue()));
      consumer.assign(start.keySet());
      start.forEach((where, at) -> {
        if (at.isNumber()) {
          consumer.seek(where, at.asLong());
        } else {
          consumer.seekToBeginning(List.of(where));
        }
      });
      Map<TopicPartition, Long> ends = consumer.endOffsets(start.keySet());
      List<Object> records = new ArrayList<>();
      long deadline = System.nanoTime() + Settings.seconds(facts) * 1_000_000_000L;
      while (ends.keySet().stream().anyMatch(where -> consumer.position(where) != ends.get(where))) {
        if (System.nanoTime() > deadline) {
          throw new IllegalStateException("no end after " + records.size() + " records; ends: " + ends);
        }
        for (ConsumerRecord<byte[], byte[]> found : consumer.poll(POLL)) {
          records.add(Settings.record(found));
        }
      }
      Map<String, Long> positions = new HashMap<>();
      start.keySet().forEach(where -> positions.put(String.valueOf(where.partition()), consumer.position(where)));
      return Map.of("records", records, "ends", positions);
    }
  }

  private static Object consume(JsonNode facts) {
    try (KafkaConsumer<byte[], byte[]> consumer = member(facts)) {
      consumer.subscribe(List.of(facts.get("topic").asText()));
      List<Object> records = new ArrayList<>();
      long deadline = System.nanoTime() + Settings.seconds(facts) * 1_000_000_000L;
      while (records.size() < facts.get("count").asInt()) {
        if (System.nanoTime() > deadline) {
          throw new IllegalStateException("only " + records.size() + " records");
        }
        for (ConsumerRecord<byte[], byte[]> found : consumer.poll(POLL)) {
          records.add(Settings.record(found));
        }
      }
      if (facts.has("offset")) {
        Map<TopicPartition, OffsetAndMetadata> places = new HashMap<>();
        consumer.assignment().forEach(where -> places.put(where, new OffsetAndMetadata(facts.get("offset").asLong())));
        consumer.commitSync(places);
      } else {
        consumer.commitSync();
      }
      return records;
    }
  }
}
