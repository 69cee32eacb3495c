import java.io.StringReader;
import java.io.StringWriter;
import java.math.BigDecimal;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.util.Arrays;
import java.util.Objects;
import java.util.UUID;
import org.postgresql.PGConnection;
import org.postgresql.copy.CopyManager;

/** JDBC against a server: parameters, types, NULLs, transactions, COPY, errors. Usage: Suite PORT NAMESPACE. */
public final class Suite {
    private interface Work {
        void run() throws Exception;
    }

    private static void same(String what, Object found, Object wanted) {
        if (!Objects.deepEquals(found, wanted)) {
            throw new AssertionError(what + ": " + found + ", not " + wanted);
        }
    }

    private static void refused(String sqlstate, Work work) throws Exception {
        try {
            work.run();
        } catch (SQLException error) {
            same("SQLSTATE of " + error.getMessage(), error.getSQLState(), sqlstate);
            return;
        }
        throw new AssertionError("not refused with " + sqlstate);
    }

    private static long number(Connection db, String sql) throws SQLException {
        try (Statement statement = db.createStatement(); ResultSet rows = statement.executeQuery(sql)) {
            rows.next();
            return rows.getLong(1);
        }
    }

    public static void main(String[] arguments) throws Exception {
        String where = "jdbc:postgresql://127.0.0.1:" + arguments[0] + "/shop?user=ada&currentSchema=" + arguments[1];
        try (Connection db = DriverManager.getConnection(where); Connection other = DriverManager.getConnection(where)) {
            try (Statement statement = db.createStatement()) {
                statement.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, ok BOOLEAN, n INTEGER, f DOUBLE, dec DECIMAL(10, 2),"
                    + " s TEXT, raw BYTEA, at TIMESTAMP, u UUID)");
            }
            OffsetDateTime at = OffsetDateTime.of(2024, 2, 29, 1, 2, 3, 456_000_000, ZoneOffset.UTC);
            UUID uuid = new UUID(0, 5);
            try (PreparedStatement insert = db.prepareStatement("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)")) {
                for (int id = 1; id <= 20; id++) { // from the fifth on by a statement with a name, and in binary
                    insert.setLong(1, id);
                    insert.setBoolean(2, true);
                    insert.setInt(3, -7);
                    insert.setDouble(4, 2.5);
                    insert.setBigDecimal(5, new BigDecimal("12.50"));
                    insert.setString(6, id % 2 == 0 ? null : "ü\n");
                    insert.setBytes(7, new byte[] {0, -1});
                    insert.setObject(8, at);
                    insert.setObject(9, uuid);
                    same("rows", insert.executeUpdate(), 1);
                }
            }
            try (PreparedStatement select = db.prepareStatement("SELECT * FROM t WHERE id = ?")) {
                for (int id = 1; id <= 20; id++) {
                    select.setLong(1, id);
                    try (ResultSet row = select.executeQuery()) {
                        same("a row", row.next(), true);
                        same("boolean", row.getBoolean("ok"), true);
                        same("integer", row.getInt("n"), -7);
                        same("double", row.getDouble("f"), 2.5);
                        same("decimal", row.getBigDecimal("dec"), new BigDecimal("12.50"));
                        same("text", row.getString("s"), id % 2 == 0 ? null : "ü\n");
                        same("bytes", Arrays.toString(row.getBytes("raw")), "[0, -1]");
                        same("time", row.getObject("at", OffsetDateTime.class), at);
                        same("uuid", row.getObject("u"), uuid);
                    }
                }
            }

            db.setAutoCommit(false);
            try (Statement mine = db.createStatement(); Statement theirs = other.createStatement()) {
                mine.executeUpdate("UPDATE t SET n = 1 WHERE id = 2");
                theirs.executeUpdate("UPDATE t SET n = 2 WHERE id = 2");
                refused("40001", db::commit);
                mine.executeUpdate("DELETE FROM t WHERE id > 0");
                db.rollback();
                refused("42703", () -> mine.executeQuery("SELECT nope FROM t"));
                refused("25P02", () -> mine.executeQuery("SELECT 1"));
                db.rollback();
                mine.setFetchSize(3); // a portal that is read in parts
                int count = 0;
                try (ResultSet rows = mine.executeQuery("SELECT id FROM t")) {
                    while (rows.next()) {
                        count++;
                    }
                }
                same("rows in parts", count, 20);
            }
            db.commit();
            db.setAutoCommit(true);
            same("rows", number(db, "SELECT count(*) FROM t"), 20L);

            try (PreparedStatement insert = db.prepareStatement("INSERT INTO t (id, s) VALUES (?, ?)")) {
                for (int id = 100; id < 300; id++) {
                    insert.setLong(1, id);
                    insert.setString(2, "batch");
                    insert.addBatch();
                }
                same("batch", insert.executeBatch().length, 200);
            }
            CopyManager copy = db.unwrap(PGConnection.class).getCopyAPI();
            same("COPY", copy.copyIn("COPY t (id, s) FROM STDIN", new StringReader("1000\ta\n1001\t\\N\n")), 2L);
            StringWriter out = new StringWriter();
            copy.copyOut("COPY (SELECT id, s FROM t WHERE id >= 1000) TO STDOUT (FORMAT csv)", out);
            same("COPY out", out.toString(), "1000,a\n1001,\n");
            refused("23505", () -> copy.copyIn("COPY t (id, s) FROM STDIN", new StringReader("2000\ta\n1\tb\n")));
            same("rows", number(db, "SELECT count(*) FROM t"), 222L);
            try (Statement statement = db.createStatement()) {
                statement.setQueryTimeout(5);
                same("in time", number(db, "SELECT 1"), 1L);
            }
        }
        System.out.println("ok");
    }
}
