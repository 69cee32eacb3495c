"""Relations of `pg_catalog` and `information_schema` with their columns, as PostgreSQL 15 has them."""

from typing import Final, NamedTuple


class Column(NamedTuple):
    """A column of a relation, with the name of its type here."""

    name: str
    type: str


_CATALOG: Final = """
    pg_namespace: oid:oid nspname nspowner:oid nspacl:text[]
    pg_class: oid:oid relname relnamespace:oid reltype:oid reloftype:oid relowner:oid relam:oid relfilenode:oid
        reltablespace:oid relpages:int4 reltuples:float4 relallvisible:int4 reltoastrelid:oid relhasindex:bool
        relisshared:bool relpersistence:char relkind:char relnatts:int2 relchecks:int2 relhasrules:bool
        relhastriggers:bool relhassubclass:bool relrowsecurity:bool relforcerowsecurity:bool relispopulated:bool
        relreplident:char relispartition:bool relrewrite:oid relfrozenxid:xid relminmxid:xid relacl:text[]
        reloptions:text[] relpartbound
    pg_attribute: attrelid:oid attname atttypid:oid attstattarget:int4 attlen:int2 attnum:int2 attndims:int4
        attcacheoff:int4 atttypmod:int4 attbyval:bool attalign:char attstorage:char attcompression:char
        attnotnull:bool atthasdef:bool atthasmissing:bool attidentity:char attgenerated:char attisdropped:bool
        attislocal:bool attinhcount:int4 attcollation:oid attacl:text[] attoptions:text[] attfdwoptions:text[]
        attmissingval
    pg_type: oid:oid typname typnamespace:oid typowner:oid typlen:int2 typbyval:bool typtype:char typcategory:char
        typispreferred:bool typisdefined:bool typdelim:char typrelid:oid typsubscript typelem:oid typarray:oid
        typinput typoutput typreceive typsend typmodin typmodout typanalyze typalign:char typstorage:char
        typnotnull:bool typbasetype:oid typtypmod:int4 typndims:int4 typcollation:oid typdefaultbin typdefault
        typacl:text[]
    pg_attrdef: oid:oid adrelid:oid adnum:int2 adbin
    pg_constraint: oid:oid conname connamespace:oid contype:char condeferrable:bool condeferred:bool
        convalidated:bool conrelid:oid contypid:oid conindid:oid conparentid:oid confrelid:oid confupdtype:char
        confdeltype:char confmatchtype:char conislocal:bool coninhcount:int4 connoinherit:bool conkey:int2[]
        confkey:int2[] conpfeqop:oid[] conppeqop:oid[] conffeqop:oid[] confdelsetcols:int2[] conexclop:oid[] conbin
    pg_index: indexrelid:oid indrelid:oid indnatts:int2 indnkeyatts:int2 indisunique:bool indnullsnotdistinct:bool
        indisprimary:bool indisexclusion:bool indimmediate:bool indisclustered:bool indisvalid:bool
        indcheckxmin:bool indisready:bool indislive:bool indisreplident:bool indkey:int2vector
        indcollation:oidvector indclass:oidvector indoption:int2vector indexprs indpred
    pg_proc: oid:oid proname pronamespace:oid proowner:oid prolang:oid procost:float4 prorows:float4 provariadic:oid
        prosupport prokind:char prosecdef:bool proleakproof:bool proisstrict:bool proretset:bool provolatile:char
        proparallel:char pronargs:int2 pronargdefaults:int2 prorettype:oid proargtypes:oidvector
        proallargtypes:oid[] proargmodes:char[] proargnames:text[] proargdefaults protrftypes:oid[] prosrc probin
        prosqlbody proconfig:text[] proacl:text[]
    pg_database: oid:oid datname datdba:oid encoding:int4 datlocprovider:char datistemplate:bool datallowconn:bool
        datconnlimit:int4 datfrozenxid:xid datminmxid:xid dattablespace:oid datcollate datctype daticulocale
        datcollversion datacl:text[]
    pg_roles: rolname rolsuper:bool rolinherit:bool rolcreaterole:bool rolcreatedb:bool rolcanlogin:bool
        rolreplication:bool rolconnlimit:int4 rolpassword rolvaliduntil:timestamptz rolbypassrls:bool
        rolconfig:text[] oid:oid
    pg_user: usename usesysid:oid usecreatedb:bool usesuper:bool userepl:bool usebypassrls:bool passwd
        valuntil:timestamptz useconfig:text[]
    pg_authid: oid:oid rolname rolsuper:bool rolinherit:bool rolcreaterole:bool rolcreatedb:bool rolcanlogin:bool
        rolreplication:bool rolbypassrls:bool rolconnlimit:int4 rolpassword rolvaliduntil:timestamptz
    pg_auth_members: roleid:oid member:oid grantor:oid admin_option:bool
    pg_shadow: usename usesysid:oid usecreatedb:bool usesuper:bool userepl:bool usebypassrls:bool passwd
        valuntil:timestamptz useconfig:text[]
    pg_group: groname grosysid:oid grolist:oid[]
    pg_settings: name setting unit category short_desc extra_desc context vartype source min_val max_val
        enumvals:text[] boot_val reset_val sourcefile sourceline:int4 pending_restart:bool
    pg_tables: schemaname tablename tableowner tablespace hasindexes:bool hasrules:bool hastriggers:bool
        rowsecurity:bool
    pg_views: schemaname viewname viewowner definition
    pg_matviews: schemaname matviewname matviewowner tablespace hasindexes:bool ispopulated:bool definition
    pg_indexes: schemaname tablename indexname tablespace indexdef
    pg_sequences: schemaname sequencename sequenceowner data_type:oid start_value:int8 min_value:int8 max_value:int8
        increment_by:int8 cycle:bool cache_size:int8 last_value:int8
    pg_sequence: seqrelid:oid seqtypid:oid seqstart:int8 seqincrement:int8 seqmax:int8 seqmin:int8 seqcache:int8
        seqcycle:bool
    pg_am: oid:oid amname amhandler amtype:char
    pg_description: objoid:oid classoid:oid objsubid:int4 description
    pg_shdescription: objoid:oid classoid:oid description
    pg_enum: oid:oid enumtypid:oid enumsortorder:float4 enumlabel
    pg_range: rngtypid:oid rngsubtype:oid rngmultitypid:oid rngcollation:oid rngsubopc:oid rngcanonical rngsubdiff
    pg_extension: oid:oid extname extowner:oid extnamespace:oid extrelocatable:bool extversion extconfig:oid[]
        extcondition:text[]
    pg_available_extensions: name default_version installed_version comment
    pg_inherits: inhrelid:oid inhparent:oid inhseqno:int4 inhdetachpending:bool
    pg_policy: oid:oid polname polrelid:oid polcmd:char polpermissive:bool polroles:oid[] polqual polwithcheck
    pg_policies: schemaname tablename policyname permissive roles:text[] cmd qual with_check
    pg_statistic_ext: oid:oid stxrelid:oid stxname stxnamespace:oid stxowner:oid stxstattarget:int4
        stxkeys:int2vector stxkind:char[] stxexprs
    pg_publication: oid:oid pubname pubowner:oid puballtables:bool pubinsert:bool pubupdate:bool pubdelete:bool
        pubtruncate:bool pubviaroot:bool
    pg_publication_rel: oid:oid prpubid:oid prrelid:oid prqual prattrs:int2vector
    pg_publication_tables: pubname schemaname tablename attnames:text[] rowfilter
    pg_publication_namespace: oid:oid pnpubid:oid pnnspid:oid
    pg_subscription: oid:oid subdbid:oid subskiplsn subname subowner:oid subenabled:bool subbinary:bool
        substream:bool subtwophasestate:char subdisableonerr:bool subconninfo subslotname subsynccommit
        subpublications:text[]
    pg_stat_activity: datid:oid datname pid:int4 leader_pid:int4 usesysid:oid usename application_name client_addr
        client_hostname client_port:int4 backend_start:timestamptz xact_start:timestamptz query_start:timestamptz
        state_change:timestamptz wait_event_type wait_event state backend_xid:xid backend_xmin:xid query_id:int8
        query backend_type
    pg_trigger: oid:oid tgrelid:oid tgparentid:oid tgname tgfoid:oid tgtype:int2 tgenabled:char tgisinternal:bool
        tgconstrrelid:oid tgconstrindid:oid tgconstraint:oid tgdeferrable:bool tginitdeferred:bool tgnargs:int2
        tgattr:int2vector tgargs:bytea tgqual tgoldtable tgnewtable
    pg_event_trigger: oid:oid evtname evtevent evtowner:oid evtfoid:oid evtenabled:char evttags:text[]
    pg_foreign_table: ftrelid:oid ftserver:oid ftoptions:text[]
    pg_foreign_server: oid:oid srvname srvowner:oid srvfdw:oid srvtype srvversion srvacl:text[] srvoptions:text[]
    pg_foreign_data_wrapper: oid:oid fdwname fdwowner:oid fdwhandler:oid fdwvalidator:oid fdwacl:text[]
        fdwoptions:text[]
    pg_user_mapping: oid:oid umuser:oid umserver:oid umoptions:text[]
    pg_user_mappings: umid:oid srvid:oid srvname umuser:oid usename umoptions:text[]
    pg_collation: oid:oid collname collnamespace:oid collowner:oid collprovider:char collisdeterministic:bool
        collencoding:int4 collcollate collctype colliculocale collversion
    pg_language: oid:oid lanname lanowner:oid lanispl:bool lanpltrusted:bool lanplcallfoid:oid laninline:oid
        lanvalidator:oid lanacl:text[]
    pg_operator: oid:oid oprname oprnamespace:oid oprowner:oid oprkind:char oprcanmerge:bool oprcanhash:bool
        oprleft:oid oprright:oid oprresult:oid oprcom:oid oprnegate:oid oprcode oprrest oprjoin
    pg_opclass: oid:oid opcmethod:oid opcname opcnamespace:oid opcowner:oid opcfamily:oid opcintype:oid
        opcdefault:bool opckeytype:oid
    pg_opfamily: oid:oid opfmethod:oid opfname opfnamespace:oid opfowner:oid
    pg_amop: oid:oid amopfamily:oid amoplefttype:oid amoprighttype:oid amopstrategy:int2 amoppurpose:char
        amopopr:oid amopmethod:oid amopsortfamily:oid
    pg_amproc: oid:oid amprocfamily:oid amproclefttype:oid amprocrighttype:oid amprocnum:int2 amproc
    pg_aggregate: aggfnoid aggkind:char aggnumdirectargs:int2 aggtransfn aggfinalfn aggcombinefn aggserialfn
        aggdeserialfn aggmtransfn aggminvtransfn aggmfinalfn aggfinalextra:bool aggmfinalextra:bool
        aggfinalmodify:char aggmfinalmodify:char aggsortop:oid aggtranstype:oid aggtransspace:int4 aggmtranstype:oid
        aggmtransspace:int4 agginitval aggminitval
    pg_cast: oid:oid castsource:oid casttarget:oid castfunc:oid castcontext:char castmethod:char
    pg_conversion: oid:oid conname connamespace:oid conowner:oid conforencoding:int4 contoencoding:int4 conproc
        condefault:bool
    pg_depend: classid:oid objid:oid objsubid:int4 refclassid:oid refobjid:oid refobjsubid:int4 deptype:char
    pg_shdepend: dbid:oid classid:oid objid:oid objsubid:int4 refclassid:oid refobjid:oid deptype:char
    pg_rewrite: oid:oid rulename ev_class:oid ev_type:char ev_enabled:char is_instead:bool ev_qual ev_action
    pg_rules: schemaname tablename rulename definition
    pg_partitioned_table: partrelid:oid partstrat:char partnatts:int2 partdefid:oid partattrs:int2vector
        partclass:oidvector partcollation:oidvector partexprs
    pg_tablespace: oid:oid spcname spcowner:oid spcacl:text[] spcoptions:text[]
    pg_default_acl: oid:oid defaclrole:oid defaclnamespace:oid defaclobjtype:char defaclacl:text[]
    pg_init_privs: objoid:oid classoid:oid objsubid:int4 privtype:char initprivs:text[]
    pg_seclabel: objoid:oid classoid:oid objsubid:int4 provider label
    pg_seclabels: objoid:oid classoid:oid objsubid:int4 objtype objnamespace:oid objname provider label
    pg_largeobject_metadata: oid:oid lomowner:oid lomacl:text[]
    pg_locks: locktype database:oid relation:oid page:int4 tuple:int2 virtualxid transactionid:xid classid:oid
        objid:oid objsubid:int2 virtualtransaction pid:int4 mode granted:bool fastpath:bool waitstart:timestamptz
    pg_stat_user_tables: relid:oid schemaname relname seq_scan:int8 seq_tup_read:int8 idx_scan:int8
        idx_tup_fetch:int8 n_tup_ins:int8 n_tup_upd:int8 n_tup_del:int8 n_tup_hot_upd:int8 n_live_tup:int8
        n_dead_tup:int8 n_mod_since_analyze:int8 n_ins_since_vacuum:int8 last_vacuum:timestamptz
        last_autovacuum:timestamptz last_analyze:timestamptz last_autoanalyze:timestamptz vacuum_count:int8
        autovacuum_count:int8 analyze_count:int8 autoanalyze_count:int8
    pg_stat_all_tables: relid:oid schemaname relname seq_scan:int8 seq_tup_read:int8 idx_scan:int8
        idx_tup_fetch:int8 n_tup_ins:int8 n_tup_upd:int8 n_tup_del:int8 n_tup_hot_upd:int8 n_live_tup:int8
        n_dead_tup:int8 n_mod_since_analyze:int8 n_ins_since_vacuum:int8 last_vacuum:timestamptz
        last_autovacuum:timestamptz last_analyze:timestamptz last_autoanalyze:timestamptz vacuum_count:int8
        autovacuum_count:int8 analyze_count:int8 autoanalyze_count:int8
    pg_stat_database: datid:oid datname numbackends:int4 xact_commit:int8 xact_rollback:int8 blks_read:int8
        blks_hit:int8 tup_returned:int8 tup_fetched:int8 tup_inserted:int8 tup_updated:int8 tup_deleted:int8
        conflicts:int8 temp_files:int8 temp_bytes:int8 deadlocks:int8 checksum_failures:int8
        checksum_last_failure:timestamptz blk_read_time:float8 blk_write_time:float8 session_time:float8
        active_time:float8 idle_in_transaction_time:float8 sessions:int8 sessions_abandoned:int8 sessions_fatal:int8
        sessions_killed:int8 stats_reset:timestamptz
    pg_stat_user_indexes: relid:oid indexrelid:oid schemaname relname indexrelname idx_scan:int8 idx_tup_read:int8
        idx_tup_fetch:int8
    pg_ts_config: oid:oid cfgname cfgnamespace:oid cfgowner:oid cfgparser:oid
    pg_ts_dict: oid:oid dictname dictnamespace:oid dictowner:oid dicttemplate:oid dictinitoption
    pg_ts_parser: oid:oid prsname prsnamespace:oid prsstart prstoken prsend prsheadline prslextype
    pg_ts_template: oid:oid tmplname tmplnamespace:oid tmplinit tmpllexize
    pg_prepared_xacts: transaction:xid gid prepared:timestamptz owner database
    pg_prepared_statements: name statement prepare_time:timestamptz parameter_types:oid[] from_sql:bool
        generic_plans:int8 custom_plans:int8
    pg_cursors: name statement is_holdable:bool is_binary:bool is_scrollable:bool creation_time:timestamptz
    pg_timezone_names: name abbrev utc_offset is_dst:bool
    pg_timezone_abbrevs: abbrev utc_offset is_dst:bool
    pg_stats: schemaname tablename attname inherited:bool null_frac:float4 avg_width:int4 n_distinct:float4
        most_common_vals most_common_freqs:float4[] histogram_bounds correlation:float4 most_common_elems
        most_common_elem_freqs:float4[] elem_count_histogram:float4[]
    pg_db_role_setting: setdatabase:oid setrole:oid setconfig:text[]
    pg_replication_slots: slot_name plugin slot_type datoid:oid database temporary:bool active:bool active_pid:int4
        xmin:xid catalog_xmin:xid restart_lsn confirmed_flush_lsn wal_status safe_wal_size:int8 two_phase:bool
"""
_INFORMATION: Final = """
    tables: table_catalog table_schema table_name table_type self_referencing_column_name reference_generation
        user_defined_type_catalog user_defined_type_schema user_defined_type_name is_insertable_into is_typed
        commit_action
    columns: table_catalog table_schema table_name column_name ordinal_position:int4 column_default is_nullable
        data_type character_maximum_length:int4 character_octet_length:int4 numeric_precision:int4
        numeric_precision_radix:int4 numeric_scale:int4 datetime_precision:int4 interval_type
        interval_precision:int4 character_set_catalog character_set_schema character_set_name collation_catalog
        collation_schema collation_name domain_catalog domain_schema domain_name udt_catalog udt_schema udt_name
        scope_catalog scope_schema scope_name maximum_cardinality:int4 dtd_identifier is_self_referencing
        is_identity identity_generation identity_start identity_increment identity_maximum identity_minimum
        identity_cycle is_generated generation_expression is_updatable
    schemata: catalog_name schema_name schema_owner default_character_set_catalog default_character_set_schema
        default_character_set_name sql_path
    table_constraints: constraint_catalog constraint_schema constraint_name table_catalog table_schema table_name
        constraint_type is_deferrable initially_deferred enforced nulls_distinct
    key_column_usage: constraint_catalog constraint_schema constraint_name table_catalog table_schema table_name
        column_name ordinal_position:int4 position_in_unique_constraint:int4
    referential_constraints: constraint_catalog constraint_schema constraint_name unique_constraint_catalog
        unique_constraint_schema unique_constraint_name match_option update_rule delete_rule
    constraint_column_usage: table_catalog table_schema table_name column_name constraint_catalog constraint_schema
        constraint_name
    constraint_table_usage: table_catalog table_schema table_name constraint_catalog constraint_schema
        constraint_name
    check_constraints: constraint_catalog constraint_schema constraint_name check_clause
    views: table_catalog table_schema table_name view_definition check_option is_updatable is_insertable_into
        is_trigger_updatable is_trigger_deletable is_trigger_insertable_into
    sequences: sequence_catalog sequence_schema sequence_name data_type numeric_precision:int4
        numeric_precision_radix:int4 numeric_scale:int4 start_value minimum_value maximum_value increment
        cycle_option
    routines: specific_catalog specific_schema specific_name routine_catalog routine_schema routine_name
        routine_type module_catalog module_schema module_name udt_catalog udt_schema udt_name data_type
        character_maximum_length:int4 character_octet_length:int4 character_set_catalog character_set_schema
        character_set_name collation_catalog collation_schema collation_name numeric_precision:int4
        numeric_precision_radix:int4 numeric_scale:int4 datetime_precision:int4 interval_type
        interval_precision:int4 type_udt_catalog type_udt_schema type_udt_name scope_catalog scope_schema scope_name
        maximum_cardinality:int4 dtd_identifier routine_body routine_definition external_name external_language
        parameter_style is_deterministic sql_data_access is_null_call sql_path schema_level_routine
        max_dynamic_result_sets:int4 is_user_defined_cast is_implicitly_invocable security_type
        to_sql_specific_catalog to_sql_specific_schema to_sql_specific_name as_locator created:timestamptz
        last_altered:timestamptz new_savepoint_level is_udt_dependent result_cast_from_data_type
        result_cast_as_locator result_cast_char_max_length:int4 result_cast_char_octet_length:int4
        result_cast_char_set_catalog result_cast_char_set_schema result_cast_char_set_name
        result_cast_collation_catalog result_cast_collation_schema result_cast_collation_name
        result_cast_numeric_precision:int4 result_cast_numeric_precision_radix:int4 result_cast_numeric_scale:int4
        result_cast_datetime_precision:int4 result_cast_interval_type result_cast_interval_precision:int4
        result_cast_type_udt_catalog result_cast_type_udt_schema result_cast_type_udt_name result_cast_scope_catalog
        result_cast_scope_schema result_cast_scope_name result_cast_maximum_cardinality:int4
        result_cast_dtd_identifier
    parameters: specific_catalog specific_schema specific_name ordinal_position:int4 parameter_mode is_result
        as_locator parameter_name data_type character_maximum_length:int4 character_octet_length:int4
        character_set_catalog character_set_schema character_set_name collation_catalog collation_schema
        collation_name numeric_precision:int4 numeric_precision_radix:int4 numeric_scale:int4
        datetime_precision:int4 interval_type interval_precision:int4 udt_catalog udt_schema udt_name scope_catalog
        scope_schema scope_name maximum_cardinality:int4 dtd_identifier parameter_default
    triggers: trigger_catalog trigger_schema trigger_name event_manipulation event_object_catalog
        event_object_schema event_object_table action_order:int4 action_condition action_statement
        action_orientation action_timing action_reference_old_table action_reference_new_table
        action_reference_old_row action_reference_new_row created:timestamptz
    table_privileges: grantor grantee table_catalog table_schema table_name privilege_type is_grantable
        with_hierarchy
    column_privileges: grantor grantee table_catalog table_schema table_name column_name privilege_type is_grantable
    role_table_grants: grantor grantee table_catalog table_schema table_name privilege_type is_grantable
        with_hierarchy
    role_column_grants: grantor grantee table_catalog table_schema table_name column_name privilege_type
        is_grantable
    usage_privileges: grantor grantee object_catalog object_schema object_name object_type privilege_type
        is_grantable
    enabled_roles: role_name
    applicable_roles: grantee role_name is_grantable
    character_sets: character_set_catalog character_set_schema character_set_name character_repertoire form_of_use
        default_collate_catalog default_collate_schema default_collate_name
    collations: collation_catalog collation_schema collation_name pad_attribute
    domains: domain_catalog domain_schema domain_name data_type character_maximum_length:int4
        character_octet_length:int4 character_set_catalog character_set_schema character_set_name collation_catalog
        collation_schema collation_name numeric_precision:int4 numeric_precision_radix:int4 numeric_scale:int4
        datetime_precision:int4 interval_type interval_precision:int4 domain_default udt_catalog udt_schema udt_name
        scope_catalog scope_schema scope_name maximum_cardinality:int4 dtd_identifier
    element_types: object_catalog object_schema object_name object_type collection_type_identifier data_type
        character_maximum_length:int4 character_octet_length:int4 character_set_catalog character_set_schema
        character_set_name collation_catalog collation_schema collation_name numeric_precision:int4
        numeric_precision_radix:int4 numeric_scale:int4 datetime_precision:int4 interval_type
        interval_precision:int4 domain_default udt_catalog udt_schema udt_name scope_catalog scope_schema scope_name
        maximum_cardinality:int4 dtd_identifier
    information_schema_catalog_name: catalog_name
    view_table_usage: view_catalog view_schema view_name table_catalog table_schema table_name
    view_column_usage: view_catalog view_schema view_name table_catalog table_schema table_name column_name
    routine_privileges: grantor grantee specific_catalog specific_schema specific_name routine_catalog
        routine_schema routine_name privilege_type is_grantable
    triggered_update_columns: trigger_catalog trigger_schema trigger_name event_object_catalog event_object_schema
        event_object_table event_object_column
    column_udt_usage: udt_catalog udt_schema udt_name table_catalog table_schema table_name column_name
    data_type_privileges: object_catalog object_schema object_name object_type dtd_identifier
    sql_features: feature_id feature_name sub_feature_id sub_feature_name is_supported is_verified_by comments
    foreign_tables: foreign_table_catalog foreign_table_schema foreign_table_name foreign_server_catalog
        foreign_server_name
    udt_privileges: grantor grantee udt_catalog udt_schema udt_name privilege_type is_grantable
"""
"""One relation a paragraph: its name and its columns with types, where text is not named."""


def _read(text: str) -> dict[str, tuple[Column, ...]]:
    found: dict[str, list[Column]] = {}
    columns: list[Column] = []
    for word in text.split():
        name, _, kind = word.partition(":")
        if word.endswith(":"):
            columns = found[name] = []
        else:
            columns.append(Column(name, kind or "text"))
    return {name: tuple(each) for name, each in found.items()}


CATALOG: Final = _read(_CATALOG)
"""The relations of `pg_catalog`, by name."""
INFORMATION: Final = _read(_INFORMATION)
"""Those of `information_schema`."""
