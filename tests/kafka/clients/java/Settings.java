import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.header.Header;

/** What the commands share: client settings and records as they travel. */
final class Settings {
  private Settings() {}

  /** The settings that every client of this command needs. */
  static Map<String, Object> of(JsonNode facts) {
    JsonNode conn = facts.get("conn");
    boolean sasl = conn.has("user");
    boolean tls = conn.has("ca");
    Map<String, Object> settings = new HashMap<>();
    settings.put("bootstrap.servers", conn.get("bootstrap").asText());
    settings.put("security.protocol", (sasl ? "SASL_" : "") + (tls ? "SSL" : "PLAINTEXT"));
    settings.put("reconnect.backoff.max.ms", 200);
    if (facts.has("rack")) {
      settings.put("client.rack", facts.get("rack").asText());
    }
    if (sasl) {
      settings.put("sasl.mechanism", "PLAIN");
      settings.put(
          "sasl.jaas.config",
          "org.apache.kafka.common.security.plain.PlainLoginModule required username=\""
              + conn.get("user").asText()
              + "\" password=\""
              + conn.get("password").asText()
              + "\";");
    }
    if (tls) {
      settings.put("ssl.truststore.type", "PEM");
      settings.put("ssl.truststore.location", conn.get("ca").asText());
    }
    return settings;
  }

  static byte[] unpacked(JsonNode text) {
    return text == null || text.isNull() ? null : Base64.getDecoder().decode(text.asText());
  }

  static String packed(byte[] data) {
    return data == null ? null : Base64.getEncoder().encodeToString(data);
  }

  /** A consumed record as it travels. */
  static Map<String, Object> record(ConsumerRecord<byte[], byte[]> found) {
    Map<String, Object> record = new LinkedHashMap<>();
    record.put("partition", found.partition());
    record.put("offset", found.offset());
    record.put("timestamp", found.timestamp());
    record.put("key", packed(found.key()));
    record.put("value", packed(found.value()));
    List<Object> headers = new ArrayList<>();
    for (Header header : found.headers()) {
      List<String> pair = new ArrayList<>();
      pair.add(header.key());
      pair.add(packed(header.value()));
      headers.add(pair);
    }
    record.put("headers", headers);
    return record;
  }

  static long seconds(JsonNode facts) {
    return facts.has("seconds") ? facts.get("seconds").asLong() : 30;
  }
}
