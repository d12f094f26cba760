//! Defines rules for private keys, signed tokens and connection strings. Their formats are standards and not specific
//! to one vendor.

use super::pem_keys::Armour;
use super::row::{Row, armoured, row};

/// The words in the first line of every PEM private key. HTML forms encode the space as `+`.
const PRIVATE_KEY: &[&str] = &["PRIVATE KEY", "PRIVATE+KEY"];

pub(super) const ROWS: &[Row] = &[
    armoured("rsa-private-key", "an RSA private key", PRIVATE_KEY, Armour::Pem(Some("RSA")), &["-----BEGIN RSA PRIVATE KEY-----\n<64B>\n<64B>\n-----END RSA PRIVATE KEY-----"], &["-----BEGIN RSA PRIVATE KEY-----\n...\n", "-----BEGIN RSA PUBLIC KEY-----\n<64B>\n<64B>"]),
    armoured("ec-private-key", "an elliptic-curve private key", PRIVATE_KEY, Armour::Pem(Some("EC")), &["-----BEGIN EC PRIVATE KEY-----\n<64B>\n<64B>\n-----END EC PRIVATE KEY-----"], &["-----BEGIN EC PRIVATE KEY-----\n...\n", "-----BEGIN EC PUBLIC KEY-----\n<64B>\n<64B>"]),
    armoured("dsa-private-key", "a DSA private key", PRIVATE_KEY, Armour::Pem(Some("DSA")), &["-----BEGIN DSA PRIVATE KEY-----\n<64B>\n<64B>\n-----END DSA PRIVATE KEY-----"], &["-----BEGIN DSA PRIVATE KEY-----\n...\n", "-----BEGIN DSA PUBLIC KEY-----\n<64B>\n<64B>"]),
    armoured("openssh-private-key", "an OpenSSH private key", PRIVATE_KEY, Armour::Pem(Some("OPENSSH")), &["-----BEGIN OPENSSH PRIVATE KEY-----\\n<64B>\\n<64B>\\n-----END OPENSSH PRIVATE KEY-----"], &["-----BEGIN OPENSSH PRIVATE KEY-----\n...\n", "-----BEGIN OPENSSH PUBLIC KEY-----\n<64B>\n<64B>"]),
    armoured("pkcs8-private-key", "a private key", PRIVATE_KEY, Armour::Pem(Some("")), &["-----BEGIN PRIVATE KEY-----\n<64B>\n<64B>\n-----END PRIVATE KEY-----"], &["-----BEGIN PRIVATE KEY-----\n...\n", "-----BEGIN PUBLIC KEY-----\n<64B>\n<64B>"]),
    armoured("encrypted-private-key", "an encrypted private key", PRIVATE_KEY, Armour::Pem(Some("ENCRYPTED")), &["-----BEGIN ENCRYPTED PRIVATE KEY-----\n<64B>\n<64B>\n-----END ENCRYPTED PRIVATE KEY-----"], &["-----BEGIN ENCRYPTED PRIVATE KEY-----\n...\n", "-----BEGIN ENCRYPTED PUBLIC KEY-----\n<64B>\n<64B>"]),
    armoured("pgp-private-key", "a PGP private key", PRIVATE_KEY, Armour::Pem(Some("PGP")), &["-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n<64B>\n<64B>\n-----END PGP PRIVATE KEY BLOCK-----"], &["-----BEGIN PGP PRIVATE KEY BLOCK-----\n...\n", "-----BEGIN PGP PUBLIC KEY BLOCK-----\n<64B>\n<64B>"]),
    armoured("ssh2-private-key", "an SSH2 private key", PRIVATE_KEY, Armour::Pem(Some("SSH2 ENCRYPTED")), &["---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\n<64B>\n<64B>\n---- END SSH2 ENCRYPTED PRIVATE KEY ----"], &["---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\n...\n", "---- BEGIN SSH2 ENCRYPTED PUBLIC KEY ----\n<64B>\n<64B>"]),
    armoured("private-key", "a private key", PRIVATE_KEY, Armour::Pem(None), &["-----BEGIN X25519 PRIVATE KEY-----\n<64B>\n-----END X25519 PRIVATE KEY-----", "-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n<64B>\n<64B>"], &["-----BEGIN X25519 PRIVATE KEY-----\n...\n"]),
    armoured("putty-private-key", "a PuTTY private key", &["Private-Lines:"], Armour::Until(&["Private-MAC", "Private-Hash"]), &["PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\nPublic-Lines: 1\nx\nPrivate-Lines: 1\n<64B>"], &["PuTTY-User-Key-File-3: ssh-ed25519\n"]),
    row("pgp-private-key-base64", "a PGP private key in base64", &["lFgE", "lIYE", "lHcE", "lKUE"], r"l(?:FgE|IYE|HcE|KUE)[V-f][A-Za-z0-9+/]{80,400}", &["lFgEa<120B>"], &["lFgE<120h>", "lFgEa<20B>"]),
    row("age-secret-key", "an age secret key", &["AGE-SECRET-KEY-1"], r"AGE-SECRET-KEY-1[QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L]{58}", &["AGE-SECRET-KEY-1<58Q>"], &["AGE-SECRET-KEY-1<12Q>"]),
    armoured("minisign-secret-key", "a minisign or signify secret key", &["minisign encrypted secret key", "minisign+encrypted+secret+key", "minisign secret key", "signify secret key", "signify+secret+key"], Armour::Until(&["untrusted comment"]), &["untrusted comment: minisign encrypted secret key\n<210B>==", "> untrusted comment: signify secret key\n> <140B>"], &["untrusted comment: minisign encrypted secret key"]),
    row("wireguard-private-key", "a WireGuard private key", &["privatekey", "presharedkey"], r"(?i:privatekey|presharedkey)@=([A-Za-z0-9+/]{43}=)", &["PrivateKey = <43B>="], &["PrivateKey = none"]),
    row("bitcoin-extended-private-key", "a wallet's private key", &["xprv", "tprv"], r"[xt]prv[1-9A-HJ-NP-Za-km-z]{107,108}\b", &["xprv<107K>"], &["xprv<20K>"]),
    row("jwt", "a signed token (JWT)", &["eyJ"], r"eyJ[A-Za-z0-9_-]{10,1500}\.eyJ(?:[A-Za-z0-9_-]{10,3700}\.[A-Za-z0-9_-]{20,1400}|[A-Za-z0-9_-]{1200,3700}\z)", &["eyJ<30b>.eyJ<80b>.<43b>"], &["eyJ<30b>", "eyJ<30b>.<80b>"]).reach(3700).entropy(3.5),
    row("jwe", "an encrypted token (JWE)", &["eyJ"], r"eyJ[A-Za-z0-9_-]{20,400}\.[A-Za-z0-9_-]{0,700}\.[A-Za-z0-9_-]{16,22}\.[A-Za-z0-9_-]{10,2000}\.[A-Za-z0-9_-]{20,44}\b", &["eyJ<40b>.<80b>.<16b>.<80b>.<22b>"], &["eyJ<40b>.<80b>.<16b>"]).reach(3700).entropy(3.5),
    row("jwk-private", "a private key as JSON (JWK)", &["\"d\"", "\"d\\"], r#""d\\{0,7}"\s{0,4}:\s{0,4}\\{0,7}"([A-Za-z0-9_-]{40,1400})"#, &["{\"kty\":\"EC\",\"crv\":\"P-256\",\"d\":\"<43b>\"}", "{\"d\":\"<43b>\",\"crv\":\"P-256\",\"kty\":\"EC\"}", "{\\\"kty\\\":\\\"EC\\\",\\\"crv\\\":\\\"P-256\\\",\\\"d\\\":\\\"<43b>\\\"}"], &["{\"kty\":\"EC\",\"x\":\"<43b>\"}", "{\"kty\":\"EC\"},{\"d\":\"<43b>\"}", "{\"d\":\"<43b>\"},{\"kty\":\"EC\"}"]).reach(1500).beside(in_key_set),
    armoured("kubeconfig-key", "a client key of Kubernetes", &["client-key-data"], Armour::Until(&["-data"]), &["client-key-data: <200B>=="], &["client-key-data: <20B>"]),
    row("ansible-vault", "an Ansible vault", &["$ANSIBLE_VAULT;"], r"\$ANSIBLE_VAULT;[0-9.]{3};AES256(?:;[^\s;]{1,60})?\s{1,4}([0-9a-f\s]{80,3000})", &["$ANSIBLE_VAULT;1.1;AES256\n    <80h>\n    <80h>"], &["$ANSIBLE_VAULT;1.1;AES256\n"]).reach(3200).warn(),
    row("mongodb-url", "a MongoDB connection string", &["mongodb://", "mongodb+"], r"mongodb@//", &["mongodb+srv://u:<16w>@192.0.2.7/x"], &["mongodb://c.example.net/x", "mongodb://u:$PASSWORD@192.0.2.7"]),
    row("postgres-url", "a PostgreSQL connection string", &["postgres://", "postgresql://", "postgres+", "postgresql+"], r"postgres(?:ql)?@//", &["postgres://u:<16w>@192.0.2.7:5432/x", "postgresql+psycopg2://u:<16w>@db/x", "postgresql://u:p@<12w>@db/x", "postgresql://u:<16w>@/x?host=/run/db", "postgresql+asyncpg://{user}:<12w>@{host}/x"], &["postgresql://db.example.net/x", "postgres://u:{password}@192.0.2.7", "postgresql+psycopg2://u:{os.environ['DB_PASSWORD']}@db/x", "postgresql://u:${dbPassword}@db", "postgresql://u:'+password+'@db", "postgresql+psycopg://u:[YOUR-PASSWORD]@db"]),
    row("mysql-url", "a MySQL connection string", &["mysql://", "mysql+", "mariadb://", "mariadb+"], r"(?:mysql|mariadb)@//", &["mysql://u:<16w>@192.0.2.7/x", "mysql+pymysql://u:<16w>@db/x"], &["mysql://db.example.net/x", "mysql+pymysql://u:${DB_PASSWORD:-changeme}@db/x"]),
    row("mysql-dsn", "a MySQL connection string", &["@tcp(", "@unix("], r"[A-Za-z0-9_.-]{1,32}:([^\s@/'\x22`]{4,128})@(?:tcp|unix)\(", &["root:<16w>@tcp(db:3306)/x"], &["root:${PASSWORD}@tcp(db:3306)/x", "root@tcp(db:3306)/x"]).lookbehind(164),
    row("mssql-url", "a SQL Server connection string", &["mssql://", "mssql+", "sqlserver://"], r"(?:mssql|sqlserver)@//", &["mssql://sa:<16w>@db/x", "mssql+pyodbc://sa:<16w>@db/x?driver=y", "sqlserver://sa:<16w>@192.0.2.7:1433?database=x"], &["mssql+pyodbc://db/x?driver=y", "mssql://sa:%SA_PASSWORD%@db", "jdbc:sqlserver://h:1;user=u;password=@<16w>@"]).beside(is_no_jdbc),
    row("redis-url", "a Redis connection string", &["redis://", "rediss://"], r"rediss?@//", &["redis://:<16w>@192.0.2.7:6379"], &["redis://c.example.net:6379"]),
    row("amqp-url", "a message broker's connection string", &["amqp://", "amqps://"], r"amqps?@//", &["amqps://u:<16w>@192.0.2.7/v"], &["amqp://q.example.net/v"]),
    row("clickhouse-url", "a ClickHouse connection string", &["clickhouse://", "clickhouse+"], r"clickhouse@//", &["clickhouse://u:<16w>@192.0.2.7:9440/x"], &["clickhouse://c.example.net/x"]),
    row("connection-string", "a password in a connection string", &["password=", "pwd=", "password =", "pwd =", "passwd="], r"(?i:password|passwd|pwd)\s?=\s{0,2}\\{0,3}[\x22']?([^\s;\x22'<>]{5,127}[^\s;\x22'<>,)\\])", &["Password=<16w>;Server=db.example.net;", "Server=tcp:db.example.net,1433;Initial Catalog=main;User ID=u;Password=<16w>", "data source=db.example.net; pwd=<16w>;", "Server=db;Password=<16w>;User Id=sa", "Driver={ODBC Driver 18 for SQL Server};UID=sa;PWD={<16w>};", "Server = db; Password = <12w>&<4w>; Encrypt = yes", "DSN=x;PWD=<16w>", "host=db password=<16w> dbname=x", "dbname=x user=u password='<16w>' host=db", "password=<16w> host=192.0.2.7", "connect(host=\"db\", password=\"<16w>\")", "connect(password='<16w>', database='x')"], &["password=<16w>", "Password=<16w>; and more", "server=1; and\npassword=<16w>", "server=1 password=<16w>", "host=db password=changeme dbname=x", "host=db password=$PGPASSWORD dbname=x", "Server=db;Password=${DB_PASSWORD};User Id=sa", "Server=db;Password=<password>;User Id=sa", "Server=db;Password={{ db_password }};User Id=sa", "Server=db;Password=@DB_PASSWORD@;User Id=sa", "connect(host=db, password=os.environ[\"DB_PASSWORD\"], dbname=x)", "connect(host=host, password=password, user=user)", "c.server=s; c.database=d; c.password=s.password;"]).beside(in_connection_string),
    row("jdbc-password", "a JDBC connection string", &["jdbc:"], r"jdbc:[a-z0-9]{2,20}:[^\r\n\x22']{1,240}?(?:;\s{0,2}(?i:password|pwd)=([^\s;\x22'<>]{4,128})|[?&(](?i:password|pwd)=([^\s&;)\x22'<>]{4,128}))", &["jdbc:postgresql://h.example.net/db?user=u&password=<16w>", "jdbc:postgresql://h/db?password=<16w>&user=u", "jdbc:sqlserver://h:1433;databaseName=my db;user=u;password=<16w>;encrypt=true", "jdbc:sqlserver://h;Password=<16w>;User=u", "jdbc:mysql://address=(host=h)(password=<16w>)/x"], &["jdbc:postgresql://h.example.net/db?user=u", "jdbc:sqlserver://h;user=u;password=${db.password}"]),
    row("jdbc-oracle-login", "an Oracle JDBC connection string", &["jdbc:oracle:"], r"jdbc:oracle:[a-z0-9]{3,8}:[^\s/@:]{1,60}/([^\s@/]{4,128})@", &["jdbc:oracle:thin:scott/<16w>@//db:1521/x"], &["jdbc:oracle:thin:@//db:1521/x", "jdbc:oracle:thin:scott/tiger@db:1521:x"]),
    row("database-url-password", "a password in a database's URL", &["postgres://", "postgresql:", "mysql://", "mariadb://", "mongodb://", "redis://", "mssql://", "sqlserver://"], r"[a-z]{5,10}:[^\s\x22'<>]{0,240}?[?&](?i:password|pwd)=([^\s&;\x22'<>]{4,128})", &["postgresql:///x?host=/run/db&user=u&password=<16w>", "postgres://db/x?password=<16w>&user=u"], &["postgresql://db/x?user=u", "postgresql://db/x?user=u&password=$PASSWORD"]).beside(is_no_jdbc),
    row("url-password", "a password in a URL", &["://"], r"://[^\s:/@'\x22<>?#]{1,80}:([^\s@/'\x22<>?#]{6,128})@(?:[A-Za-z0-9.-]{2}|[\[{$<%])", &["https://u:<16w>@192.0.2.7/x", "sftp://u:<16w>@db", "oracle+oracledb://u:<16w>@db/x", "ldaps://u:<16w>@[2001:db8::1]"], &["https://h.example.net:8080/a@b", "https://user:password@192.0.2.7", "://u:<16w>@192.0.2.7", "snowflake://u:{secrets.PASSWORD}@db"]).entropy(2.8).beside(has_other_scheme),
    row("basic-authorization", "a login in an Authorization header", &["authorization"], r"(?i:authorization)@=(?i:basic)\s{1,2}([A-Za-z0-9+/]{12,300}={0,2})", &["Authorization: Basic <40B>"], &["Authorization: Basic xxxx"]).entropy(3.0),
    row("netrc-login", "a login of a .netrc file", &["machine "], r"machine\s{1,4}[A-Za-z0-9.-]{1,100}\s{1,8}login\s{1,4}[^\s]{1,100}\s{1,8}password\s{1,4}([^\s]{6,200})", &["machine h.example.net login u password <16w>"], &["machine h.example.net login u"]),
    row("npmrc-token", "a login of an .npmrc file", &["_authtoken=", "_password="], r"_(?:authToken|password)=([A-Za-z0-9+/=_-]{16,300})", &["//r.example.net/:_authToken=<36w>"], &["//r.example.net/:_authToken=${TOKEN}"]).entropy(3.0),
];

/// The names of fields that accompany a password in the connection strings of ADO.NET, ODBC and OLE DB. A `;` separates
/// the fields of these connection strings.
const CONNECTION_FIELDS: &[&[u8]] = &[
    b"server",
    b"host",
    b"hostname",
    b"data source",
    b"datasource",
    b"addr",
    b"address",
    b"network address",
    b"database",
    b"databasename",
    b"initial catalog",
    b"dbq",
    b"encrypt",
    b"driver",
    b"provider",
    b"dsn",
    b"port",
    b"user",
    b"user id",
    b"userid",
    b"username",
    b"uid",
    b"integrated security",
    b"trusted_connection",
    b"trustservercertificate",
    b"persist security info",
    b"sslmode",
    b"ssl mode",
];
/// The names of fields that accompany a password in libpq's connection strings, where whitespace separates the fields,
/// and in the arguments of functions that connect to a database.
const CONNECTION_WORDS: &[&[u8]] = &[b"host", b"hostaddr", b"dbname", b"database", b"sslmode"];
/// The URL schemes that have separate rows for URLs with a login.
const OWN_SCHEMES: &[&[u8]] = &[
    b"mongodb",
    b"postgres",
    b"postgresql",
    b"mysql",
    b"mariadb",
    b"mssql",
    b"sqlserver",
    b"redis",
    b"rediss",
    b"amqp",
    b"amqps",
    b"clickhouse",
];
/// The maximum number of bytes on each side of a password that are searched for other fields of the connection string.
const MAX_CONNECTION: usize = 300;
/// The maximum length of a URL's scheme, including the name of a driver.
const MAX_SCHEME: usize = 40;

/// Returns whether the JSON object around a match contains the key type (`kty`).
fn in_key_set(before: &[u8], after: &[u8]) -> bool {
    let is_brace = |byte: &u8| b"{}".contains(byte);
    let before = &before[before.iter().rposition(is_brace).unwrap_or(0)..];
    let after = &after[..after.iter().position(is_brace).unwrap_or(after.len())];
    [before, after].iter().any(|side| memchr::memmem::find(side, b"\"kty").is_some())
}

/// Returns whether other fields of a connection string precede or follow a match on the same line.
fn in_connection_string(before: &[u8], after: &[u8]) -> bool {
    let is_end = |byte: &u8| b"\r\n".contains(byte);
    let before = &before[before.len().saturating_sub(MAX_CONNECTION)..];
    let before = &before[before.iter().rposition(is_end).map_or(0, |at| at + 1)..];
    if !is_no_jdbc(before, after) {
        return false;
    }
    let after = &after[..after.len().min(MAX_CONNECTION)];
    let after = &after[..after.iter().position(is_end).unwrap_or(after.len())];
    let (before, after) = (before.to_ascii_lowercase(), after.to_ascii_lowercase());
    // In nested JSON, backslashes precede a quote, so they are skipped.
    let after = &after[after.iter().take_while(|byte| **byte == b'\\').count()..];
    let quoted = after.first().is_some_and(|byte| b"\"'`".contains(byte));
    let rest = &after[usize::from(quoted)..];
    let head = before.trim_ascii_end();
    let fields = |side: &[u8]| has_field(side, CONNECTION_FIELDS);
    let words = |side: &[u8]| has_field(side, CONNECTION_WORDS);
    if head.ends_with(b";") && fields(head) || rest.trim_ascii_start().starts_with(b";") && fields(rest) {
        return true;
    }
    let ends = quoted || after.first().is_none_or(u8::is_ascii_whitespace);
    if ends && (before.len() > head.len() && words(head) || words(rest)) && !head.ends_with(b",") {
        return true;
    }
    let listed = head.ends_with(b",") || head.ends_with(b"(");
    let next = rest.trim_ascii_start().first();
    listed && quoted && next.is_none_or(|byte| b",)".contains(byte)) && (words(head) || words(rest))
}

/// Returns whether `side` contains one of the fields `names`: the complete name, followed by an equals sign. `side`
/// must be in lower case.
fn has_field(side: &[u8], names: &[&[u8]]) -> bool {
    memchr::memchr_iter(b'=', side).any(|at| {
        let name = side[..at].trim_ascii_end();
        names.iter().any(|field| {
            let before = name.strip_suffix(*field).map(|before| before.last());
            before.is_some_and(|last| last.is_none_or(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_'))
        })
    })
}

/// Returns whether no JDBC URL precedes a match on the same line. JDBC URLs have a separate row.
fn is_no_jdbc(before: &[u8], _: &[u8]) -> bool {
    let line = before.iter().rposition(|byte| *byte == b'\n').map_or(before, |at| &before[at..]);
    memchr::memmem::rfind(line, b"jdbc:").is_none()
}

/// Returns whether a URL's scheme precedes a match, and no other row describes URLs with this scheme.
fn has_other_scheme(before: &[u8], _: &[u8]) -> bool {
    let before = &before[before.len().saturating_sub(MAX_SCHEME)..];
    let of_scheme = |byte: &u8| byte.is_ascii_alphanumeric() || b"+.-_".contains(byte);
    let start = before.iter().rposition(|byte| !of_scheme(byte)).map_or(0, |at| at + 1);
    let scheme = &before[start..];
    let name = scheme.split(|byte| *byte == b'+').next().unwrap_or_default();
    scheme.len() >= 2 && !OWN_SCHEMES.iter().any(|own| name.eq_ignore_ascii_case(own))
}
