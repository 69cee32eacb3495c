import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.utils.Exit;

/** Runs Kafka's command line tools in one process: for each line, a JSON list of a class and its arguments, a line with
 * the exit code and the output. */
public final class Tools {
    private static final class Ended extends RuntimeException {
        private static final long serialVersionUID = 1L;
    }

    /** The first code that the tool exits with: some catch the exception, and exit again. */
    private static Integer code;

    private Tools() {}

    public static void main(String[] none) throws Exception {
        Exit.Procedure end = (exit, message) -> {
            if (code == null) {
                code = exit;
            }
            throw new Ended();
        };
        Exit.setExitProcedure(end);
        Exit.setHaltProcedure(end);
        ObjectMapper json = new ObjectMapper();
        PrintStream answers = System.out;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            List<?> words = json.readValue(line, List.class);
            String[] arguments = words.subList(1, words.size()).toArray(String[]::new);
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            PrintStream printed = new PrintStream(out, true, StandardCharsets.UTF_8);
            System.setOut(printed);
            System.setErr(printed);
            code = null;
            run((String) words.get(0), arguments);
            Map<String, Object> answer = new LinkedHashMap<>();
            answer.put("code", code == null ? 0 : code);
            answer.put("output", out.toString(StandardCharsets.UTF_8));
            answers.println(json.writeValueAsString(answer));
            answers.flush();
        }
    }

    private static void run(String tool, String[] arguments) throws ReflectiveOperationException {
        try {
            Class<?> type = Class.forName("org.apache.kafka.tools." + tool);
            type.getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException error) {
            if (!(error.getCause() instanceof Ended)) {
                error.getCause().printStackTrace();
                code = 1;
            }
        }
    }
}
