//! Tests that the scanner finds credentials in common notations: in connection strings, as AWS keys in configuration
//! files, and as tokens of hexadecimal digits. Placeholders in the same notations, and digests, are not findings.

use std::sync::Arc;

use bottle_scan::{KnownSecrets, Scanner};

/// A generated password that no service uses.
const PASSWORD: &str = "qX7zR2mK9pL4wT8v";
/// A generated value in the form of an AWS secret access key.
const AWS: &str = "h7Jq2LxPz0/Rk4vTn9Ws+Yb6Mc1Fd8GgQe5Ua3Xo";

/// Generated hexadecimal digits, of which the tests use the first 32, 40 or 64.
const DIGITS: &str = "7c4e02b9d81f35a6e9903b5d7f12c8ae64b07d9318a5f06c2be74d91c35a80fe";

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

/// Notations of tokens. The test replaces `@H` by 40 or 64 hexadecimal digits.
const HEX_TOKENS: &[&str] = &[
    "curl -H 'Authorization: token @H' https://git.example.com/api/v1/user",
    "authorization:bearer @H",
    "Authorization: Token token=\"@H\"",
    "Authorization = Bearer @H",
    "{\"Authorization\": \"Token @H\", \"Accept\": \"*/*\"}",
    "{ Authorization: `Bearer @H` }",
    "session.headers['Authorization'] = 'token @H'",
    "request.setRequestHeader(\"Authorization\", \"Bearer @H\");",
    "'Authorization' => 'Token @H',",
    "git -c http.extraHeader=\"Authorization: token @H\" fetch",
    "curl -H 'PRIVATE-TOKEN: @H' https://git.example.com",
    "Circle-Token: @H",
    "X-Gitea-Token: @H",
    "https://git.example.com/api/v1/user?access_token=@H",
    "https://git.example.com/api/v1/user?page=2&token=@H",
    "POST /submit\n\ntoken=@H&text=hello",
    "GITEA_TOKEN=@H",
    "export NETBOX_TOKEN=\"@H\"",
    "environment:\n  - TODOIST_TOKEN=@H",
    "environment:\n  TODOIST_TOKEN: @H",
    "ENV TODOIST_TOKEN=@H",
    "ENV TODOIST_TOKEN @H",
    "- name: TODOIST_TOKEN\n  value: \"@H\"",
    "{\"name\": \"TODOIST_TOKEN\", \"value\": \"@H\"}",
    "token: @H",
    "  token: '@H'",
    "token = \"@H\"",
    "\"token\": \"@H\"",
    "\"authToken\":\"@H\"",
    "const accessToken = '@H';",
    "const token: string = '@H';",
    "api_token: str = \"@H\"",
    "const API_TOKEN: &str = \"@H\";",
    "client = Client(url, token=\"@H\")",
    "params = [(\"token\", \"@H\")]",
    "config['auth_token'] = '@H'",
    "token := \"@H\"",
    "<token>@H</token>",
    "//npm.example.com/:_authToken=@H",
    "tea login add --name work --token @H",
    "tea login add --token=@H",
    "my token: @H",
    "+token: @H",
    "api_key=@H",
    "apiKey: '@H'",
    "redmine.api.key=@H",
    "X-Redmine-API-Key: @H",
    "dd-application-key: @H",
    "search --api-key @H",
    "API key: @H",
    "client_secret=@H&grant_type=client_credentials",
    "\"clientSecret\": \"@H\"",
    "WEBHOOK_SECRET=@H",
    "signing_secret: @H",
];

/// Notations of tokens in which 32 digits suffice.
const SHORT_HEX_TOKENS: &[&str] = &[
    "Authorization: Bearer @H",
    "authorization: @H",
    "api-key: @H",
    "X-Api-Key: @H",
    "{\"xi-api-key\": \"@H\"}",
    "Ocp-Apim-Subscription-Key: @H",
    "X-Auth-Token: @H",
    "https://api.example.com/3/movie?api_key=@H&page=1",
    "https://api.example.com/v2/everything?q=a&apiKey=@H",
    "NEWS_API_KEY=@H",
    "ROLLBAR_ACCESS_TOKEN: \"@H\"",
    "SLACK_SIGNING_SECRET=@H",
    "news --api-key @H",
];

/// Commit ids, digests and other values that are no credentials. The test replaces `@H` by 32, 40 or 64 digits.
const DIGESTS: &[&str] = &[
    "@H",
    "commit @H\nAuthor: A <a@example.com>\n\n    Read the token\n\ncommit @H\n",
    "commit @H (HEAD -> token, origin/token)",
    "    authorization:\n\ncommit @H",
    "    Replace the API key:\n@H",
    "@H Rename the token",
    "@H\trefs/heads/token\n@H\trefs/heads/api_key\n@H\trefs/tags/v1",
    "# pack-refs with: peeled\n@H refs/heads/token\n@H refs/heads/main",
    "* token   @H Add a token",
    "100644 blob @H\ttoken\n100644 blob @H\tsecret",
    "index @H..@H 100644\n--- a/token\n+++ b/token\n-token\n+secret",
    "the commit token @H",
    "the commit token: @H",
    "see the token in @H",
    "the token, @H, and the secret",
    "git show @H:src/token",
    "git checkout @H -- api_key",
    "This reverts commit @H, which added the token.",
    "(cherry picked from commit @H)",
    "Merge token @H",
    "{\"sha\": \"@H\", \"node_id\": \"C_kwDOABCD\", \"commit\": {\"tree\": {\"sha\": \"@H\"}}, \"parents\": [{\"sha\": \"@H\"}]}",
    "{\"path\": \"src/token\", \"mode\": \"100644\", \"type\": \"blob\", \"sha\": \"@H\"}",
    "{\"name\": \"token\", \"commit\": {\"sha\": \"@H\"}, \"protected\": true}",
    "{\"name\": \"token\", \"path\": \"token\", \"sha\": \"@H\"}",
    "https://api.example.com/repos/a/token/git/trees/@H?recursive=1",
    "https://api.example.com/repos/a/b/compare/@H...@H?token",
    "\"resolved\": \"git+ssh://git@git.example.com/a/token.git#@H\"",
    "token@https://git.example.com/a/token.git#@H:\n  version \"1.0.0\"",
    "\"integrity\": \"sha512-@H\"",
    "\"name\": \"token\", \"version\": \"1.0.0\", \"gitHead\": \"@H\", \"_shasum\": \"@H\"",
    "[[package]]\nname = \"token\"\nversion = \"1.0.0\"\nchecksum = \"@H\"",
    "source = \"git+https://git.example.com/a/token?rev=@H#@H\"",
    "{\"files\":{\"src/token.rs\":\"@H\",\"src/token\":\"@H\",\"api_key.rs\":\"@H\"},\"package\":\"@H\"}",
    "token==1.0.0 --hash=sha256:@H",
    "{:token, \"1.0.0\", \"@H\", [:mix]}",
    "  revision: @H\n  specs:\n    token (1.0.0)",
    "token:\n  dependency: transitive\n  sha256: \"@H\"",
    "SHA256 (token) = @H",
    "@H  dist/token\n@H  dist/api_key",
    "\"https://example.com/mod/token\": \"@H\"",
    "FROM example/token@sha256:@H",
    "ARG GIT_COMMIT=@H\nENV SOURCE_SHA=@H",
    "ENV TOKEN_SHA256 @H",
    "LABEL org.opencontainers.image.revision=\"@H\"",
    "uses: example/token@@H",
    "ETag: \"@H\"",
    "If-None-Match: \"@H\"",
    "Content-MD5: @H",
    "token_sha256 = \"@H\"",
    "tokenHash: \"@H\"",
    "token_id: @H",
    "api_key_hash: @H",
    "tokenizer: \"@H\"",
    "tokens: [\"@H\"]",
    "max_tokens: 4096, sha: \"@H\"",
    "token: \"sha256:@H\"",
    "token: \"0x@H\"",
    "next_page_token=@H",
    "nextPageToken: \"@H\"",
    "\"nextToken\": \"@H\"",
    "https://api.example.com/v1/items?pageToken=@H",
    "https://api.example.com/v1/items?page_token=@H",
    "x-ms-continuation-token: @H",
    "the continuation token: @H",
    "\"continuationToken\": \"@H\"",
    "sync_token=@H",
    "resumeToken: { _data: \"@H\" }",
    "resume_token: \"@H\"",
    "X-CSRF-Token: @H",
    "Cookie: csrftoken=@H; XSRF-TOKEN=@H",
    "authenticity_token=@H",
    "__RequestVerificationToken=@H",
    "ClientRequestToken=@H",
    "deviceToken: @H",
    "Lock-Token: @H",
    "https://ci.example.com/gh/a/b.svg?style=shield&circle-token=@H",
    "public_api_key = \"@H\"",
    "NEXT_PUBLIC_API_KEY=@H",
    "VITE_API_KEY=@H",
    "X-Algolia-API-Key: @H",
    "cache_key: @H",
    "secret: \"@H\"",
    "shared_secret = \"@H\"",
    "SECRET_KEY = \"@H\"",
    "private_key: @H",
    "password: @H",
    "APP_SECRET=@H",
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

#[test]
fn finds_a_token_of_hexadecimal_digits_after_the_name_of_a_credential() {
    let scanner = scanner();
    let cases = HEX_TOKENS.iter().flat_map(|template| [(template, 40), (template, 64)]);
    let mut wrong = Vec::new();
    for (template, length) in cases.chain(SHORT_HEX_TOKENS.iter().map(|template| (template, 32))) {
        let text = template.replace("@H", &DIGITS[..length]);
        let json = serde_json::json!({ "text": text }).to_string();
        for text in [text, json] {
            let found = found(&scanner, &text);
            if !found.iter().any(|(rule, matched)| rule.starts_with("hex-") && *matched == DIGITS[..length]) {
                wrong.push((text, found));
            }
        }
        let placeholder = template.replace("@H", "0123456789abcdef0123456789abcdef01234567");
        let found = found(&scanner, &placeholder);
        if found.iter().any(|(rule, _)| rule.starts_with("hex-")) {
            wrong.push((placeholder, found));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn digests_are_no_tokens() {
    let scanner = scanner();
    let mut wrong = Vec::new();
    for template in DIGESTS {
        for length in [32, 40, 64] {
            let text = template.replace("@H", &DIGITS[..length]);
            let json = serde_json::json!({ "text": text }).to_string();
            for text in [text, json] {
                let found = found(&scanner, &text);
                if !found.is_empty() {
                    wrong.push((text, found));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_short_token_is_found_after_an_explicit_name_only() {
    let scanner = scanner();
    for text in
        ["apiKey: '@H'", "token: @H", "clientSecret = \"@H\"", "-token: @H", "https://a.example/?token=@H"]
    {
        assert_eq!(found(&scanner, &text.replace("@H", &DIGITS[..32])), [], "{text}");
    }
}
