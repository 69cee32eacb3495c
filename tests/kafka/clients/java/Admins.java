import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/** Commands for the admin client. */
final class Admins {
  private Admins() {}

  private interface Question {
    Object ask(Admin admin, JsonNode facts) throws Exception;
  }

  static void register(Map<String, Main.Command> commands) {
    commands.put("create_topic", with(Admins::createTopic));
    commands.put("describe_topic", with(Admins::describeTopic));
    commands.put("create_partitions", with(Admins::createPartitions));
    commands.put("describe_configs", with(Admins::describeConfigs));
    commands.put("alter_configs", with(Admins::alterConfigs));
    commands.put("delete_records", with(Admins::deleteRecords));
    commands.put("delete_topic", with(Admins::deleteTopic));
    commands.put("offsets", with(Admins::offsets));
    commands.put("committed", with(Admins::committed));
    commands.put("commit", with(Admins::commit));
    commands.put("groups", with(Admins::groups));
    commands.put("describe_group", with(Admins::describeGroup));
    commands.put("delete_group", with(Admins::deleteGroup));
  }

  private static Main.Command with(Question question) {
    return facts -> {
      Map<String, Object> settings = Settings.of(facts);
      settings.put("default.api.timeout.ms", 15000);
      settings.put("request.timeout.ms", 10000);
      try (Admin admin = Admin.create(settings)) {
        return question.ask(admin, facts);
      }
    };
  }

  private static String topic(JsonNode facts) {
    return facts.get("topic").asText();
  }

  private static Object createTopic(Admin admin, JsonNode facts) throws Exception {
    NewTopic topic = new NewTopic(topic(facts), facts.get("partitions").asInt(), (short) 1);
    Map<String, String> configs = new HashMap<>();
    facts.path("configs").properties().forEach(entry -> configs.put(entry.getKey(), entry.getValue().asText()));
    admin.createTopics(List.of(topic.configs(configs))).all().get();
    return null;
  }

  private static Object describeTopic(Admin admin, JsonNode facts) throws Exception {
    var found = admin.describeTopics(List.of(topic(facts))).allTopicNames().get().get(topic(facts));
    return Map.of("partitions", found.partitions().size());
  }

  private static Object createPartitions(Admin admin, JsonNode facts) throws Exception {
    NewPartitions total = NewPartitions.increaseTo(facts.get("total").asInt());
    admin.createPartitions(Map.of(topic(facts), total)).all().get();
    return null;
  }

  private static ConfigResource resource(JsonNode facts) {
    return new ConfigResource(ConfigResource.Type.TOPIC, topic(facts));
  }

  private static Object describeConfigs(Admin admin, JsonNode facts) throws Exception {
    Config found = admin.describeConfigs(List.of(resource(facts))).all().get().get(resource(facts));
    Map<String, String> configs = new HashMap<>();
    for (ConfigEntry entry : found.entries()) {
      configs.put(entry.name(), entry.value());
    }
    return configs;
  }

  private static Object alterConfigs(Admin admin, JsonNode facts) throws Exception {
    List<AlterConfigOp> changes = new ArrayList<>();
    facts.get("configs").properties().forEach(entry ->
        changes.add(
            new AlterConfigOp(new ConfigEntry(entry.getKey(), entry.getValue().asText()), AlterConfigOp.OpType.SET)));
    admin.incrementalAlterConfigs(Map.of(resource(facts), changes)).all().get();
    return null;
  }

  private static TopicPartition where(JsonNode facts) {
    return new TopicPartition(topic(facts), facts.get("partition").asInt());
  }

  private static Object deleteRecords(Admin admin, JsonNode facts) throws Exception {
    RecordsToDelete before = RecordsToDelete.beforeOffset(facts.get("offset").asLong());
    admin.deleteRecords(Map.of(where(facts), before)).all().get();
    return null;
  }

  private static Object deleteTopic(Admin admin, JsonNode facts) throws Exception {
    admin.deleteTopics(List.of(topic(facts))).all().get();
    return null;
  }

  private static Object offsets(Admin admin, JsonNode facts) throws Exception {
    OffsetSpec at = switch (facts.get("at").asText()) {
      case "earliest" -> OffsetSpec.earliest();
      case "latest" -> OffsetSpec.latest();
      case "max" -> OffsetSpec.maxTimestamp();
      default -> OffsetSpec.forTimestamp(facts.get("at").asLong());
    };
    return admin.listOffsets(Map.of(where(facts), at)).all().get().get(where(facts)).offset();
  }

  private static Object committed(Admin admin, JsonNode facts) throws Exception {
    Map<String, Long> committed = new HashMap<>();
    admin.listConsumerGroupOffsets(facts.get("group").asText()).partitionsToOffsetAndMetadata().get()
        .forEach((where, place) -> {
          if (where.topic().equals(topic(facts)) && place != null) {
            committed.put(String.valueOf(where.partition()), place.offset());
          }
        });
    return committed;
  }

  private static Object commit(Admin admin, JsonNode facts) throws Exception {
    Map<TopicPartition, OffsetAndMetadata> places = new HashMap<>();
    facts.get("offsets").properties().forEach(entry ->
        places.put(
            new TopicPartition(topic(facts), Integer.parseInt(entry.getKey())),
            new OffsetAndMetadata(entry.getValue().asLong())));
    admin.alterConsumerGroupOffsets(facts.get("group").asText(), places).all().get();
    return null;
  }

  private static Object groups(Admin admin, JsonNode facts) throws Exception {
    List<String> names = new ArrayList<>();
    admin.listGroups(new ListGroupsOptions()).all().get().forEach(group -> names.add(group.groupId()));
    return names;
  }

  private static Object describeGroup(Admin admin, JsonNode facts) throws Exception {
    String group = facts.get("group").asText();
    ConsumerGroupDescription found = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
    String state = found.groupState().toString().toLowerCase(Locale.ROOT);
    return Map.of("state", state, "members", found.members().size());
  }

  private static Object deleteGroup(Admin admin, JsonNode facts) throws Exception {
    admin.deleteConsumerGroups(List.of(facts.get("group").asText())).all().get();
    return null;
  }
}
