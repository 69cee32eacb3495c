import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Types;
import java.util.ArrayList;
import java.util.List;

/** DatabaseMetaData of PgJDBC, as tools on the JVM ask for it. Arguments: port and namespace; ends with "ok". */
public final class Metadata {
    private Metadata() {
    }

    private static void same(String what, Object found, Object wanted) {
        if (!found.equals(wanted)) {
            throw new AssertionError(what + ": " + found + ", not " + wanted);
        }
    }

    /** The named columns of all rows, joined. */
    private static List<String> rows(ResultSet rows, String... columns) throws SQLException {
        List<String> found = new ArrayList<>();
        while (rows.next()) {
            List<String> row = new ArrayList<>();
            for (String column : columns) {
                row.add(String.valueOf(rows.getString(column)));
            }
            found.add(String.join(" ", row));
        }
        rows.close();
        return found;
    }

    public static void main(String[] arguments) throws Exception {
        String namespace = arguments[1];
        String where = "jdbc:postgresql://127.0.0.1:" + arguments[0] + "/shop?user=ada&currentSchema=" + namespace;
        try (Connection db = DriverManager.getConnection(where); Statement statement = db.createStatement()) {
            statement.execute("CREATE TABLE seen (id BIGINT, part INTEGER, name VARCHAR(20) NOT NULL DEFAULT 'x',"
                + " price DECIMAL(10, 2), at TIMESTAMP, PRIMARY KEY (id, part), UNIQUE (name))");
            statement.execute("CREATE INDEX by_price ON seen (price, at)");
            DatabaseMetaData meta = db.getMetaData();
            same("schemas", rows(meta.getSchemas(null, namespace), "TABLE_SCHEM"), List.of(namespace));
            same("catalogs", rows(meta.getCatalogs(), "TABLE_CAT"), List.of("shop"));
            same("tables", rows(meta.getTables(null, namespace, "%", new String[] {"TABLE"}), "TABLE_NAME", "TABLE_TYPE"),
                List.of("seen TABLE"));
            same("views", rows(meta.getTables(null, "system", "topic\\_off%", new String[] {"VIEW"}), "TABLE_NAME"),
                List.of("topic_offsets"));
            same("columns", rows(meta.getColumns(null, namespace, "seen", "%"), "COLUMN_NAME", "TYPE_NAME", "COLUMN_SIZE",
                "DECIMAL_DIGITS", "IS_NULLABLE", "COLUMN_DEF", "ORDINAL_POSITION", "IS_AUTOINCREMENT"), List.of(
                "id int8 19 0 NO null 1 NO", "part int4 10 0 NO null 2 NO", "name varchar 20 0 NO 'x' 3 NO",
                "price numeric 10 2 YES null 4 NO", "at timestamptz 35 6 YES null 5 NO"));
            same("primary key", rows(meta.getPrimaryKeys(null, namespace, "seen"), "COLUMN_NAME", "KEY_SEQ", "PK_NAME"),
                List.of("id 1 seen_pkey", "part 2 seen_pkey"));
            same("indexes", rows(meta.getIndexInfo(null, namespace, "seen", false, false), "INDEX_NAME", "NON_UNIQUE",
                "ORDINAL_POSITION", "COLUMN_NAME", "ASC_OR_DESC"), List.of(
                "seen_name_key f 1 name A", "seen_pkey f 1 id A", "seen_pkey f 2 part A", "by_price t 1 price A",
                "by_price t 2 at A"));
            same("row identifier", rows(meta.getBestRowIdentifier(null, namespace, "seen", 0, true), "COLUMN_NAME"),
                List.of("id", "part"));
            same("types", rows(meta.getTypeInfo(), "TYPE_NAME").containsAll(List.of("int8", "text", "timestamptz")), true);
            same("imported keys", rows(meta.getImportedKeys(null, namespace, "seen"), "FK_NAME"), List.of());
            same("exported keys", rows(meta.getExportedKeys(null, namespace, "seen"), "FK_NAME"), List.of());
            same("functions", rows(meta.getFunctions(null, namespace, "%"), "FUNCTION_NAME"), List.of());
            same("procedures", rows(meta.getProcedures(null, namespace, "%"), "PROCEDURE_NAME"), List.of());
            same("privileges", rows(meta.getTablePrivileges(null, namespace, "seen"), "PRIVILEGE").isEmpty(), false);
            same("kinds of tables", rows(meta.getTableTypes(), "TABLE_TYPE").contains("TABLE"), true);
            same("keywords", meta.getSQLKeywords().contains("limit"), true);
            same("user", meta.getUserName(), "ada");
            same("maximum", meta.getMaxColumnNameLength(), 63);
            try (ResultSet rows = statement.executeQuery("SELECT id, price, at FROM seen")) {
                ResultSetMetaData columns = rows.getMetaData();
                same("type", columns.getColumnType(2), Types.NUMERIC);
                same("scale", columns.getScale(2), 2);
                same("name", columns.getColumnTypeName(3), "timestamptz");
                same("generated", columns.isAutoIncrement(1), false);
            }
        }
        System.out.println("ok");
    }
}
