package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
)

// newClient makes a client of the server that the command names.
func newClient(facts *Facts, more ...kgo.Opt) (*kgo.Client, error) {
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(facts.Conn.Bootstrap, ",")...),
		kgo.RetryTimeout(10 * time.Second),
		kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond }),
	}
	if facts.Conn.User != nil {
		login := plain.Auth{User: *facts.Conn.User, Pass: facts.Conn.Password}
		options = append(options, kgo.SASL(login.AsMechanism()))
	}
	if facts.Conn.CA != "" {
		pem, err := os.ReadFile(facts.Conn.CA)
		if err != nil {
			return nil, err
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, errors.New("no certificate in the CA file")
		}
		options = append(options, kgo.DialTLSConfig(&tls.Config{RootCAs: pool}))
	}
	return kgo.NewClient(append(options, more...)...)
}

func packed(data []byte) *string {
	if data == nil {
		return nil
	}
	text := base64.StdEncoding.EncodeToString(data)
	return &text
}

func unpacked(text *string) []byte {
	if text == nil {
		return nil
	}
	data, err := base64.StdEncoding.DecodeString(*text)
	if err != nil {
		panic(err)
	}
	return data
}

// item is a consumed record as it travels.
func item(record *kgo.Record) Item {
	timestamp := record.Timestamp.UnixMilli()
	headers := [][]*string{}
	for _, header := range record.Headers {
		headers = append(headers, []*string{&header.Key, packed(header.Value)})
	}
	return Item{record.Partition, record.Offset, &timestamp, packed(record.Key), packed(record.Value), headers}
}
