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
  private static final int LAST_TRIES = 100;
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
    private final Map<TopicPartition, OffsetAndMetadata> uncommitted = new HashMap<>();
    private String topic;
    private KafkaConsumer<byte[], byte[]> consumer;

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
      topic = facts.get("topic").asText();
      try (KafkaConsumer<byte[], byte[]> made = Consumers.member(facts)) {
        consumer = made;
        consumer.subscribe(List.of(topic), this);
        while (!stopping) {
          step();
        }
        for (int tries = 0; tries < LAST_TRIES && !uncommitted.isEmpty(); tries++) {
          step();
        }
        write("leaving", null);
      }
    }

    /** One poll; commits what it gives, and what an earlier commit left behind: a rebalance refuses commits. */
    private void step() {
      ConsumerRecords<byte[], byte[]> found = consumer.poll(Duration.ofMillis(100));
      List<Object> records = new ArrayList<>();
      for (ConsumerRecord<byte[], byte[]> record : found) {
        records.add(List.of(record.partition(), record.offset()));
        uncommitted.put(new TopicPartition(topic, record.partition()), new OffsetAndMetadata(record.offset() + 1));
      }
      if (!records.isEmpty()) {
        write("records", records);
      }
      uncommitted.keySet().retainAll(consumer.assignment());
      commit(new HashMap<>(uncommitted));
    }

    private void commit(Map<TopicPartition, OffsetAndMetadata> after) {
      if (after.isEmpty()) {
        return;
      }
      Map<String, Long> places = new HashMap<>();
      after.forEach((where, place) -> places.put(String.valueOf(where.partition()), place.offset()));
      write("committing", places);
      try {
        consumer.commitSync(after);
        uncommitted.keySet().removeAll(after.keySet());
        write("committed", places);
      } catch (KafkaException error) {
        write("refused", error.toString());
      }
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
      Map<TopicPartition, OffsetAndMetadata> last = new HashMap<>(uncommitted);
      last.keySet().retainAll(partitions);
      commit(last);
      uncommitted.keySet().removeAll(partitions);
      write("revoked", numbers(partitions));
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
      write("assigned", numbers(partitions));
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
      uncommitted.keySet().removeAll(partitions);
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
