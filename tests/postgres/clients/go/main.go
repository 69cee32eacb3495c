// pgx against a server: parameters, types, NULLs, transactions, COPY, errors. Usage: suite PORT NAMESPACE
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func same(what string, found, wanted any) {
	if fmt.Sprint(found) != fmt.Sprint(wanted) {
		panic(fmt.Sprintf("%s: %v, not %v", what, found, wanted))
	}
}

func code(err error) string {
	var found *pgconn.PgError
	if errors.As(err, &found) {
		return found.Code
	}
	return fmt.Sprint(err)
}

func main() {
	ctx := context.Background()
	where := fmt.Sprintf("host=127.0.0.1 port=%s user=ada dbname=shop options='-c search_path=%s'", os.Args[1], os.Args[2])
	db, err := pgx.Connect(ctx, where)
	check(err)
	_, err = db.Exec(ctx, `CREATE TABLE t (id BIGINT PRIMARY KEY, ok BOOLEAN, n INTEGER, f DOUBLE, s TEXT, raw BYTEA, at TIMESTAMP, doc JSON)`)
	check(err)

	at := time.Date(2024, 2, 29, 1, 2, 3, 456000, time.UTC)
	tag, err := db.Exec(ctx, "INSERT INTO t VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
		int64(1)<<60, true, int32(-7), 2.5, "ü\n", []byte{0, 255}, at, map[string]int{"a": 1})
	check(err)
	same("rows", tag.RowsAffected(), 1)
	var id int64
	var ok bool
	var n int32
	var f float64
	var s string
	var raw []byte
	var when time.Time
	var doc map[string]int
	check(db.QueryRow(ctx, "SELECT * FROM t WHERE id = $1", int64(1)<<60).Scan(&id, &ok, &n, &f, &s, &raw, &when, &doc))
	same("values", []any{id, ok, n, f, s, raw, when.UTC(), doc["a"]}, []any{int64(1) << 60, true, -7, 2.5, "ü\n", []byte{0, 255}, at, 1})
	_, err = db.Exec(ctx, "INSERT INTO t (id, s) VALUES ($1, $2)", 2, nil)
	check(err)
	var nothing *string
	check(db.QueryRow(ctx, "SELECT s FROM t WHERE id = 2").Scan(&nothing))
	same("NULL", nothing == nil, true)

	tx, err := db.Begin(ctx)
	check(err)
	_, err = tx.Exec(ctx, "UPDATE t SET n = 1 WHERE id = 2")
	check(err)
	other, err := pgx.Connect(ctx, where)
	check(err)
	_, err = other.Exec(ctx, "UPDATE t SET n = 2 WHERE id = 2")
	check(err)
	same("conflict", code(tx.Commit(ctx)), "40001")
	_, err = db.Exec(ctx, "SELECT nope FROM t")
	same("error", code(err), "42703")
	_, err = db.Exec(ctx, "INSERT INTO t (id) VALUES (2)")
	same("unique", code(err), "23505")
	tx, err = db.Begin(ctx)
	check(err)
	_, err = tx.Exec(ctx, "DELETE FROM t WHERE id = 2")
	check(err)
	check(tx.Rollback(ctx))

	batch := &pgx.Batch{}
	for number := range 100 {
		batch.Queue("INSERT INTO t (id, n) VALUES ($1, $2)", number+100, number)
	}
	check(db.SendBatch(ctx, batch).Close())
	var rows [][]any
	for number := range 5000 {
		rows = append(rows, []any{int64(number + 1000), fmt.Sprint("line ", number)})
	}
	copied, err := db.CopyFrom(ctx, pgx.Identifier{"t"}, []string{"id", "s"}, pgx.CopyFromRows(rows))
	check(err)
	same("COPY", copied, 5000)
	var count int64
	check(db.QueryRow(ctx, "SELECT count(*) FROM t").Scan(&count))
	same("count", count, 5102)
	_, err = db.CopyFrom(ctx, pgx.Identifier{"t"}, []string{"id", "s"}, pgx.CopyFromRows(append(rows[:1:1], []any{int64(2), "x"})))
	same("COPY twice", code(err), "23505")
	check(other.Close(ctx))
	check(db.Close(ctx))
	fmt.Println("ok")
}
