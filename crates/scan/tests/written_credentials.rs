//! Tests that the scanner finds credentials in common notations: in connection strings, and as AWS keys in
//! configuration files. Placeholders in the same notations are not findings.

use std::sync::Arc;

use bottle_scan::{KnownSecrets, Scanner};

/// A generated password that no service uses.
const PASSWORD: &str = "qX7zR2mK9pL4wT8v";
/// A generated value in the form of an AWS secret access key.
const AWS: &str = "h7Jq2LxPz0/Rk4vTn9Ws+Yb6Mc1Fd8GgQe5Ua3Xo";

/// Connection strings. The test replaces `@P` by a password.
const CONNECTIONS: &[&str] = &[
    "postgresql+psycopg2://app:@P@db.example.com/shop",
    "postgresql+asyncpg://app:@P@db/shop",
    "SQLALCHEMY_DATABASE_URI = 'mysql+pymysql://app:@P@db:3306/shop?charset=utf8mb4'",
    "mssql://sa:@P@sql/shop",
    "mssql+pyodbc://sa:@P@sql:1433/shop?driver=ODBC+Driver+18+for+SQL+Server",
    "sqlserver://sa:@P@192.0.2.9?database=shop",
    "oracle+oracledb://scott:@P@ora/XEPDB1",
    "snowflake://app:@P@account/db",
    "postgres://app:@P@db/shop",
    "postgres://app:@P@[2001:db8::5]:5432/shop",
    "postgres://app:@P@${DB_HOST}/shop",
    "postgresql://app:@P@/shop?host=/cloudsql/x",
    "postgresql:///shop?host=/run/db&user=app&password=@P",
    "sftp://backup:@P@nas/x",
    "app:@P@tcp(db:3306)/shop?parseTime=true",
    "mongodb://app:@P@m1,m2/shop",
    "Server=sql;Database=shop;User Id=sa;Password=@P;",
    "Server=sql;Password=@P;User Id=sa;Encrypt=yes",
    "Password=@P;Server=sql",
    "User Id=sa;Password=@P;Data Source=sql",
    "\"ConnectionStrings\": {\"Shop\": \"Server=sql;User Id=sa;Password=@P\"}",
    "Host=db;Username=app;Password=@P;Database=shop",
    "Driver={ODBC Driver 18 for SQL Server};SERVER=sql;UID=sa;PWD=@P",
    "Driver={PostgreSQL Unicode};PWD=@P;UID=app",
    "DSN=shop;UID=app;PWD={@P}",
    "Provider=MSOLEDBSQL; Data Source=sql; User ID=sa; Password = @P",
    "<add connectionString=\"Data Source=sql;Initial Catalog=shop;User ID=sa;Password=@P\" />",
    "jdbc:sqlserver://sql:1433;databaseName=shop;user=sa;password=@P;encrypt=true",
    "jdbc:sqlserver://sql;Password=@P;user=sa",
    "jdbc:postgresql://db/shop?user=app&password=@P",
    "jdbc:postgresql://db/shop?password=@P&user=app",
    "jdbc:oracle:thin:scott/@P@//ora:1521/XEPDB1",
    "jdbc:mysql://app:@P@db/shop",
    "host=db port=5432 dbname=shop user=app password=@P",
    "host=db password=@P dbname=shop",
    "password=@P host=db",
    "conninfo = \"dbname=shop password='@P' user=app\"",
    "psycopg2.connect(host=\"db\", user=\"app\", password=\"@P\", dbname=\"shop\")",
];

/// Notations of AWS keys. The test replaces `@S` by a secret access key.
const AWS_KEYS: &[&str] = &[
    "aws_secret_access_key: @S",
    "  secretAccessKey: \"@S\"",
    "- name: AWS_SECRET_ACCESS_KEY\n  value: @S",
    "- name: AWS_SECRET_ACCESS_KEY\n  value: \"@S\"",
    "environment:\n  - AWS_SECRET_ACCESS_KEY=@S",
    "ENV AWS_SECRET_ACCESS_KEY @S",
    "ENV AWS_SECRET_ACCESS_KEY=@S AWS_REGION=eu-west-1",
    "set -gx AWS_SECRET_ACCESS_KEY @S",
    "setx AWS_SECRET_ACCESS_KEY \"@S\"",
    "secret_access_key: '@S',",
    ":secret_access_key => \"@S\"",
    "Aws::Credentials.new('AKIA2E6A5F3B244C7757', '@S')",
    "define('AWS_SECRET_ACCESS_KEY', '@S');",
    "'credentials' => ['key' => getenv('AWS_KEY'), 'secret' => '@S']",
    "$config['s3']['secret_key'] = '@S';",
    "aws.secretKey=@S",
    "cloud.aws.credentials.secret-key=@S",
    "secret_access_key = \"@S\"",
    "provider \"aws\" {\n  secret_key = \"@S\"\n}",
    "awsSecretAccessKey: '@S'",
    "{\"name\": \"AWS_SECRET_ACCESS_KEY\", \"value\": \"@S\"}",
    "Access key ID,Secret access key\nAKIA2E6A5F3B244C7757,@S",
];

/// Texts that replace a password in code and templates.
const PLACEHOLDERS: &[&str] = &[
    "changeme",
    "${DB_PASSWORD}",
    "${dbPassword}",
    "${DB_PASSWORD:-changeme}",
    "$DB_PASSWORD",
    "<password>",
    "<your-password>",
    "{{ db_password }}",
    "{{db_password}}",
    "{{ .Values.db.password }}",
    "{password}",
    "{settings.DB_PASSWORD}",
    "{os.environ['DB_PASSWORD']}",
    "{quote_plus(password)}",
    "#{ENV['DB_PASSWORD']}",
    "%(password)s",
    "%s",
    "%DB_PASSWORD%",
    "[YOUR-PASSWORD]",
    "$(DbPassword)",
    "__DB_PASSWORD__",
    "@DB_PASSWORD@",
    "'+password+'",
    "xxxxxxxx",
    "********",
    "...",
];

/// Code and prose that resemble connection strings.
const CLEAN: &[&str] = &[
    "connect(host=host, port=port, password=password, dbname=name)",
    "connect(host=args.host, password=args.password, dbname=args.dbname)",
    "connect(host=h, password=os.environ[\"DB_PASSWORD\"], dbname=d)",
    "connect(host=h, password=get_password(), dbname=d)",
    "this.host=e.host;this.user=e.user;this.password=e.password;",
    "let password = read_line()?; let user = read_line()?;",
    "https://example.com:8080/a@b",
    "git@example.com:team/project.git",
    "see https://example.com/login?user=a&password=forgotten1",
    "secret_key = models.CharField(max_length=40)",
    "aws_secret_access_key = os.environ['AWS_SECRET_ACCESS_KEY']",
    "AWS_SECRET_ACCESS_KEY: ${{ secrets.AWS_SECRET_ACCESS_KEY }}",
    "ENV AWS_SECRET_ACCESS_KEY $AWS_SECRET_ACCESS_KEY",
    "ARG AWS_SECRET_ACCESS_KEY\nENV AWS_REGION=eu-west-1",
    "secret_access_key: 0123456789abcdef0123456789abcdef01234567",
    "AKIA is followed by a commit 0123456789abcdef0123456789abcdef01234567",
];

fn scanner() -> Scanner {
    Scanner::outbound(Arc::new(KnownSecrets::new([]).expect("no secrets")))
}

/// Returns the rules that match in `text`, each with the matched part of `text`.
fn found(scanner: &Scanner, text: &str) -> Vec<(String, String)> {
    let findings = scanner.scan(text.as_bytes()).findings;
    let matched = |span: bottle_scan::Range64| text[span.within(text.len())].to_owned();
    findings.into_iter().map(|finding| (finding.rule.to_string(), matched(finding.span))).collect()
}

#[test]
fn finds_a_password_in_each_connection_string() {
    let scanner = scanner();
    let mut wrong = Vec::new();
    for template in CONNECTIONS {
        for password in [PASSWORD, "Tr0ub4dor&3", "{S3cret}99", "$ecret-Pa55"] {
            let text = template.replace("@P", password);
            // In the query of a URL, `&` ends a value.
            if password.contains('&') && template.contains("password=@P") && template.contains('?')
                || password.contains('&') && template.contains("&password=@P")
            {
                continue;
            }
            let found = found(&scanner, &text);
            let exact = |(_, matched): &(String, String)| {
                matched == password || *matched == format!("{{{password}}}")
            };
            if found.len() != 1 || !found.iter().any(exact) {
                wrong.push((text, found));
            }
        }
        // The connection string in a JSON string must be found too.
        let json = serde_json::json!({ "text": template.replace("@P", PASSWORD) }).to_string();
        if !found(&scanner, &json).iter().any(|(_, matched)| matched.contains(PASSWORD)) {
            wrong.push((json, Vec::new()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn placeholders_of_connection_strings_are_no_findings() {
    let scanner = scanner();
    let mut wrong = Vec::new();
    for template in CONNECTIONS {
        for placeholder in PLACEHOLDERS {
            let text = template.replace("@P", placeholder);
            let found = found(&scanner, &text);
            if !found.is_empty() {
                wrong.push((text, found));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn finds_an_aws_secret_in_each_notation() {
    let scanner = scanner();
    let mut wrong = Vec::new();
    for template in AWS_KEYS {
        let text = template.replace("@S", AWS);
        let json = serde_json::json!({ "text": text }).to_string();
        for text in [text, json] {
            let found = found(&scanner, &text);
            if !found.iter().any(|(_, matched)| matched == AWS) {
                wrong.push((text, found));
            }
        }
        let name =
            if template.contains("['s3']") || template.contains("AKIA") { "" } else { "AWS_SECRET_KEY" };
        for placeholder in ["wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", &format!("${{{name}}}"), "<secret>"] {
            let text = template.replace("@S", placeholder);
            let found: Vec<_> =
                found(&scanner, &text).into_iter().filter(|(rule, _)| rule != "aws-access-key-id").collect();
            if !found.is_empty() {
                wrong.push((text, found));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn code_that_resembles_a_connection_string_is_clean() {
    let scanner = scanner();
    for text in CLEAN {
        assert_eq!(found(&scanner, text), [], "{text}");
    }
}
