import com.fasterxml.jackson.databind.JsonNode;
import java.io.FileWriter;
import java.io.IOException;
import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;

/** Group members in threads; each writes a journal of what it saw, a JSON array a line, flushed at once. */
final class Members {
  private static final Map<String, Member> RUNNING = new ConcurrentHashMap<>();

  private Members() {}

  static void register(Map<String, Main.Command> commands) {
    commands.put("member_start", Members::start);
    commands.put("member_stop", Members::stop);
  }

  private static Object start(JsonNode facts) {
    Member member = new Member(facts);
    RUNNING.put(facts.get("member").asText(), member);
    member.setDaemon(true);
    member.start();
    return null;
  }

  private static Object stop(JsonNode facts) throws Exception {
    Member member = RUNNING.remove(facts.get("member").asText());
    member.stopping = true;
    member.join(30000);
    if (member.isAlive()) {
      throw new IllegalStateException("the member does not leave");
    }
    return null;
  }

  private static final class Member extends Thread implements ConsumerRebalanceListener {
    volatile boolean stopping;
    private final JsonNode facts;

    Member(JsonNode facts) {
      this.facts = facts;
    }

    @Override
    public void run() {
      try {
        follow();
        write("left", null);
      } catch (Throwable error) {
        error.printStackTrace();
        write("failed", error.toString());
      }
    }

    private void follow() {
      String topic = facts.get("topic").asText();
      try (KafkaConsumer<byte[], byte[]> consumer = Consumers.member(facts)) {
        consumer.subscribe(List.of(topic), this);
        while (!stopping) {
          ConsumerRecords<byte[], byte[]> found = consumer.poll(Duration.ofMillis(100));
          if (found.isEmpty()) {
            continue;
          }
          List<Object> records = new ArrayList<>();
          Map<TopicPartition, OffsetAndMetadata> after = new HashMap<>();
          Map<String, Long> places = new HashMap<>();
          for (ConsumerRecord<byte[], byte[]> record : found) {
            records.add(List.of(record.partition(), record.offset()));
            after.put(new TopicPartition(topic, record.partition()), new OffsetAndMetadata(record.offset() + 1));
            places.put(String.valueOf(record.partition()), record.offset() + 1);
          }
          write("records", records);
          write("committing", places);
          try {
            consumer.commitSync(after);
            write("committed", places);
          } catch (KafkaException error) {
            write("refused", error.toString());
          }
        }
        write("leaving", null);
      }
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
      write("revoked", numbers(partitions));
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
      write("assigned", numbers(partitions));
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
      write("lost", numbers(partitions));
    }

    private static List<Integer> numbers(Collection<TopicPartition> partitions) {
      return partitions.stream().map(TopicPartition::partition).toList();
    }

    private synchronized void write(String event, Object fact) {
      List<Object> line = new ArrayList<>(List.of(event, ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now()) / 1e6));
      if (fact != null) {
        line.add(fact);
      }
      try (FileWriter out = new FileWriter(facts.get("journal").asText(), true)) {
        out.write(Main.JSON.writeValueAsString(line) + "\n");
      } catch (IOException error) {
        throw new IllegalStateException(error);
      }
    }
  }
}
