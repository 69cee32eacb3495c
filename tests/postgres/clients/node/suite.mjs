// node-postgres against a server: parameters, types, NULLs, transactions, COPY, errors. Usage: suite.mjs PORT NAMESPACE
import assert from 'node:assert/strict'
import { pipeline } from 'node:stream/promises'
import { Readable } from 'node:stream'
import pg from 'pg'
import { from as copyFrom, to as copyTo } from 'pg-copy-streams'

const [port, namespace] = process.argv.slice(2)
const options = { host: '127.0.0.1', port: Number(port), user: 'ada', database: 'shop', options: `-c search_path=${namespace}` }
const db = new pg.Client(options)
await db.connect()
await db.query('CREATE TABLE t (id BIGINT PRIMARY KEY, ok BOOLEAN, n INTEGER, f DOUBLE, dec DECIMAL(10, 2), s TEXT, raw BYTEA, doc JSON, at TIMESTAMP, u UUID)')

const at = new Date('2024-02-29T01:02:03.456Z')
const row = ['9007199254740993', true, -7, 2.5, '12.50', "ü'\n", Buffer.from([0, 255]), { a: [1, null] }, at, '00000000-0000-0000-0000-000000000005']
const inserted = await db.query('INSERT INTO t VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) RETURNING *', row)
assert.deepEqual(Object.values(inserted.rows[0]), row)
await db.query('INSERT INTO t (id, s) VALUES ($1, $2)', [2, null])
assert.equal((await db.query('SELECT s FROM t WHERE id = $1', [2])).rows[0].s, null)
const prepared = { name: 'by id', text: 'SELECT n FROM t WHERE id = $1' }
for (const id of [row[0], '2']) await db.query({ ...prepared, values: [id] })
assert.equal((await db.query({ ...prepared, values: [row[0]] })).rows[0].n, -7)

await db.query('BEGIN')
await db.query('UPDATE t SET n = 1 WHERE id = 2')
const other = new pg.Client(options)
await other.connect()
await other.query('UPDATE t SET n = 2 WHERE id = 2')
await assert.rejects(db.query('COMMIT'), { code: '40001' })
await assert.rejects(db.query('SELECT nope FROM t'), { code: '42703', position: '8' })
await assert.rejects(db.query('INSERT INTO t (id) VALUES (2)'), { code: '23505', severity: 'ERROR' })
await db.query('BEGIN')
await db.query('DELETE FROM t WHERE id = 2')
await db.query('ROLLBACK')
assert.equal((await db.query('SELECT n FROM t WHERE id = 2')).rows[0].n, 2)

const lines = Array.from({ length: 5000 }, (_, number) => `${number + 10}\tline ${number}\n`)
await pipeline(Readable.from(lines), db.query(copyFrom('COPY t (id, s) FROM STDIN')))
const chunks = []
for await (const chunk of db.query(copyTo('COPY (SELECT id, s FROM t WHERE id >= 10 AND id < 1000000) TO STDOUT'))) chunks.push(chunk)
assert.equal(Buffer.concat(chunks).toString(), lines.join(''))
await assert.rejects(pipeline(Readable.from(['99999\tx\n', 'nothing\ty\n']), db.query(copyFrom('COPY t (id, s) FROM STDIN'))), { code: '22P02' })
assert.equal((await db.query('SELECT count(*) AS n FROM t')).rows[0].n, '5002')
await other.end()
await db.end()
console.log('ok')
