package main

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

func asked[T any](facts *Facts, ask func(*kadm.Client) (T, error)) (T, error) {
	client, err := newClient(facts)
	if err != nil {
		var none T
		return none, err
	}
	defer client.Close()
	return ask(kadm.NewClient(client))
}

func createTopic(ctx context.Context, facts *Facts) (any, error) {
	return asked(facts, func(admin *kadm.Client) (any, error) {
		configs := map[string]*string{}
		for name, value := range facts.Configs {
			configs[name] = &value
		}
		_, err := admin.CreateTopic(ctx, facts.Partitions, 1, configs, facts.Topic)
		return nil, err
	})
}

func describeTopic(ctx context.Context, facts *Facts) (any, error) {
	return asked(facts, func(admin *kadm.Client) (any, error) {
		found, err := admin.ListTopics(ctx, facts.Topic)
		if err == nil {
			err = found[facts.Topic].Err
		}
		return map[string]int{"partitions": len(found[facts.Topic].Partitions)}, err
	})
}

func createPartitions(ctx context.Context, facts *Facts) (any, error) {
	return asked(facts, func(admin *kadm.Client) (any, error) {
		done, err := admin.UpdatePartitions(ctx, facts.Total, facts.Topic)
		if err == nil {
			err = done.Error()
		}
		return nil, err
	})
}

func describeConfigs(ctx context.Context, facts *Facts) (any, error) {
	return asked(facts, func(admin *kadm.Client) (any, error) {
		found, err := admin.DescribeTopicConfigs(ctx, facts.Topic)
		if err != nil {
			return nil, err
		}
		resource, err := found.On(facts.Topic, nil)
		if err == nil {
			err = resource.Err
		}
		configs := map[string]*string{}
		for _, config := range resource.Configs {
			configs[config.Key] = config.Value
		}
		return configs, err
	})
}

func alterConfigs(ctx context.Context, facts *Facts) (any, error) {
	return asked(facts, func(admin *kadm.Client) (any, error) {
		changes := []kadm.AlterConfig{}
		for name, value := range facts.Configs {
			changes = append(changes, kadm.AlterConfig{Op: kadm.SetConfig, Name: name, Value: &value})
		}
		done, err := admin.AlterTopicConfigs(ctx, changes, facts.Topic)
		if err == nil {
			err = done[0].Err
		}
		return nil, err
	})
}

func deleteRecords(ctx context.Context, facts *Facts) (any, error) {
	return asked(facts, func(admin *kadm.Client) (any, error) {
		before := kadm.Offsets{}
		before.AddOffset(facts.Topic, facts.Partition, facts.Offset, -1)
		done, err := admin.DeleteRecords(ctx, before)
		if err == nil {
			err = done.Error()
		}
		return nil, err
	})
}

func deleteTopic(ctx context.Context, facts *Facts) (any, error) {
	return asked(facts, func(admin *kadm.Client) (any, error) {
		_, err := admin.DeleteTopic(ctx, facts.Topic)
		return nil, err
	})
}

func offsets(ctx context.Context, facts *Facts) (any, error) {
	return asked(facts, func(admin *kadm.Client) (any, error) {
		found, err := listed(ctx, admin, facts)
		if err != nil {
			return nil, err
		}
		offset, _ := found.Lookup(facts.Topic, facts.Partition)
		return offset.Offset, offset.Err
	})
}

func listed(ctx context.Context, admin *kadm.Client, facts *Facts) (kadm.ListedOffsets, error) {
	switch string(facts.At) {
	case `"earliest"`:
		return admin.ListStartOffsets(ctx, facts.Topic)
	case `"latest"`:
		return admin.ListEndOffsets(ctx, facts.Topic)
	case `"max"`:
		return admin.ListMaxTimestampOffsets(ctx, facts.Topic)
	}
	var at int64
	if err := json.Unmarshal(facts.At, &at); err != nil {
		return nil, err
	}
	return admin.ListOffsetsAfterMilli(ctx, at, facts.Topic)
}

func committed(ctx context.Context, facts *Facts) (any, error) {
	return asked(facts, func(admin *kadm.Client) (any, error) {
		found, err := admin.FetchOffsets(ctx, facts.Group)
		places := map[int32]int64{}
		for partition, place := range found[facts.Topic] {
			places[partition] = place.At
		}
		return places, err
	})
}

func commit(ctx context.Context, facts *Facts) (any, error) {
	return asked(facts, func(admin *kadm.Client) (any, error) {
		places := kadm.Offsets{}
		for partition, offset := range facts.Offsets {
			places.AddOffset(facts.Topic, partition, offset, -1)
		}
		done, err := admin.CommitOffsets(ctx, facts.Group, places)
		if err == nil {
			err = done.Error()
		}
		return nil, err
	})
}

func groups(ctx context.Context, facts *Facts) (any, error) {
	return asked(facts, func(admin *kadm.Client) (any, error) {
		found, err := admin.ListGroups(ctx)
		return found.Groups(), err
	})
}

func describeGroup(ctx context.Context, facts *Facts) (any, error) {
	return asked(facts, func(admin *kadm.Client) (any, error) {
		next, err := admin.DescribeConsumerGroups(ctx, facts.Group)
		if found := next[facts.Group]; err == nil && found.Err == nil {
			return map[string]any{"state": strings.ToLower(found.State), "members": len(found.Members)}, nil
		}
		classic, err := admin.DescribeGroups(ctx, facts.Group)
		if err != nil {
			return nil, err
		}
		found := classic[facts.Group]
		return map[string]any{"state": strings.ToLower(found.State), "members": len(found.Members)}, found.Err
	})
}

func deleteGroup(ctx context.Context, facts *Facts) (any, error) {
	return asked(facts, func(admin *kadm.Client) (any, error) {
		done, err := admin.DeleteGroups(ctx, facts.Group)
		if err != nil {
			return nil, err
		}
		if one, ok := done[facts.Group]; ok {
			return nil, one.Err
		}
		return nil, kerr.GroupIDNotFound
	})
}
