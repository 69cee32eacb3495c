import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.common.protocol.Errors;

/** The loop of the Java client program: a JSON command a line on stdin, a JSON reply a line on stdout. */
public final class Main {
  static final ObjectMapper JSON = new ObjectMapper();

  /** A command: gives what goes under "ok", null for nothing. */
  interface Command {
    Object run(JsonNode facts) throws Exception;
  }

  public static void main(String[] args) throws Exception {
    Map<String, Command> commands = new HashMap<>();
    Admins.register(commands);
    Producers.register(commands);
    Consumers.register(commands);
    Members.register(commands);
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      ObjectNode reply = JSON.createObjectNode();
      try {
        JsonNode facts = JSON.readTree(line);
        reply.set("ok", JSON.valueToTree(commands.get(facts.get("do").asText()).run(facts)));
      } catch (Throwable error) {
        error.printStackTrace();
        ObjectNode about = reply.putObject("error");
        Integer code = code(error);
        if (code == null) {
          about.putNull("code");
        } else {
          about.put("code", code);
        }
        about.put("message", error.toString());
      }
      System.out.println(JSON.writeValueAsString(reply));
      System.out.flush();
    }
    System.exit(0);
  }

  /** Kafka's error code of what a client threw; null if it has none. */
  static Integer code(Throwable error) {
    for (Throwable at = error; at != null; at = at.getCause()) {
      if (at instanceof OffsetOutOfRangeException) {
        return (int) Errors.OFFSET_OUT_OF_RANGE.code();
      }
      if (at instanceof ApiException && !(at instanceof ExecutionException)) {
        Errors found = Errors.forException(at);
        if (found != Errors.UNKNOWN_SERVER_ERROR) {
          return (int) found.code();
        }
      }
    }
    return null;
  }
}
