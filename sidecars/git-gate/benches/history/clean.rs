//! Generates files without secrets, and lines that only look like secrets.

use std::fmt::Write;

use crate::dice::{BASE64, DIGITS, Dice, HEX, WORD};

const WORDS: &[&str] = &[
    "account", "action", "adapter", "address", "agent", "amount", "array", "batch", "body", "buffer",
    "build", "cache", "cell", "channel", "child", "client", "code", "column", "command", "commit", "config",
    "context", "count", "cursor", "data", "date", "default", "delta", "depth", "device", "draft", "driver",
    "edge", "engine", "entry", "error", "event", "factory", "field", "file", "filter", "flag", "format",
    "frame", "graph", "group", "handler", "hash", "header", "host", "image", "index", "input", "item", "job",
    "key", "label", "layer", "limit", "line", "link", "list", "locale", "log", "map", "mask", "match",
    "memory", "message", "method", "metric", "mode", "model", "module", "mount", "name", "node", "number",
    "object", "offset", "option", "order", "output", "owner", "packet", "page", "panel", "parent", "parser",
    "password", "path", "payload", "peer", "point", "policy", "pool", "port", "prefix", "process", "profile",
    "proxy", "query", "queue", "range", "reader", "record", "region", "remote", "report", "request",
    "result", "route", "row", "rule", "scope", "secret", "segment", "server", "session", "shape", "signal",
    "size", "socket", "source", "stack", "state", "status", "stream", "table", "target", "task", "text",
    "thread", "time", "token", "trace", "tree", "type", "unit", "update", "user", "value", "vector",
    "version", "view", "window", "worker", "writer",
];

/// Generates a file of about `length` bytes without secrets. Returns its extension and content.
pub(crate) fn file(dice: &mut Dice, length: usize) -> (&'static str, Vec<u8>) {
    match dice.below(100) {
        0..50 => ("rs", code(dice, length).into()),
        50..62 => ("lock", lock(dice, length).into()),
        62..74 => ("md", prose(dice, length).into()),
        74..84 => ("csv", table(dice, length).into()),
        84..92 => ("min.js", minified(dice, length).into()),
        92..97 => ("sums", sums(dice, length).into()),
        _ => ("png", [b"\x89PNG\r\n\x1a\n".to_vec(), dice.bytes(length)].concat()),
    }
}

fn name(dice: &mut Dice) -> String {
    format!("{}_{}", dice.pick(WORDS), dice.pick(WORDS))
}

/// Generates a few functions of source code.
pub(crate) fn code(dice: &mut Dice, length: usize) -> String {
    let mut text = String::new();
    while text.len() < length {
        let (function, first, second, number) = (name(dice), name(dice), name(dice), dice.below(9000));
        let (kind, word) = (dice.pick(WORDS), dice.pick(WORDS));
        let _ = write!(
            text,
            "/// Makes the {word} of a {kind}.\npub fn {function}({first}: &str, {second}: usize) -> Option<{kind}> {{\n    \
             let {word} = {first}.split('/').nth({number})?;\n    if {word}.len() > {second} {{\n        \
             return None; // the {kind} has {number} at most\n    }}\n    \
             Some(Self::{kind}({word}.to_owned(), \"{function}.{first}\", 0x{number:04x}))\n}}\n\n"
        );
    }
    text
}

fn lock(dice: &mut Dice, length: usize) -> String {
    let mut text = String::from("{\n  \"lockfileVersion\": 3,\n  \"packages\": {\n");
    while text.len() < length {
        let (package, hash) = (name(dice), dice.text(BASE64, 86));
        let version = [dice.below(20), dice.below(30), dice.below(40)].map(|n| n.to_string()).join(".");
        let _ = write!(
            text,
            "    \"node_modules/{package}\": {{\n      \"version\": \"{version}\",\n      \
             \"resolved\": \"https://registry.example.net/{package}/-/{package}-{version}.tgz\",\n      \
             \"integrity\": \"sha512-{hash}==\"\n    }},\n"
        );
    }
    text + "  }\n}\n"
}

fn prose(dice: &mut Dice, length: usize) -> String {
    let mut text = String::new();
    while text.len() < length {
        let _ = write!(text, "## The {} of the {}\n\n", dice.pick(WORDS), dice.pick(WORDS));
        for _ in 0..6 {
            let sentence: Vec<&str> = (0..14).map(|_| *dice.pick(WORDS)).collect();
            let _ =
                writeln!(text, "The {}, see <https://docs.example.net/{}>.", sentence.join(" "), name(dice));
        }
        text.push('\n');
    }
    text
}

fn table(dice: &mut Dice, length: usize) -> String {
    let mut text = String::from("id,name,amount,at\n");
    while text.len() < length {
        let _ = writeln!(
            text,
            "{},{},{}.{:02},2026-0{}-1{}T08:00:00Z",
            dice.uuid(),
            name(dice),
            dice.below(90_000),
            dice.below(100),
            1 + dice.below(9),
            dice.below(9)
        );
    }
    text
}

/// Generates minified code in long lines of a few thousand bytes.
fn minified(dice: &mut Dice, length: usize) -> String {
    let mut text = String::new();
    while text.len() < length {
        let _ = write!(
            text,
            "function {}({},{}){{return {}.{}({},{:?})||e[{}]}}var {}=",
            dice.text(WORD, 2),
            dice.text(WORD, 1),
            dice.text(WORD, 1),
            dice.text(WORD, 1),
            dice.pick(WORDS),
            dice.text(WORD, 1),
            dice.pick(WORDS),
            dice.below(900),
            dice.text(WORD, 2)
        );
        if dice.below(40) == 0 {
            text.push_str("0;\n");
        }
    }
    text + "0;\n"
}

fn sums(dice: &mut Dice, length: usize) -> String {
    let mut text = String::new();
    while text.len() < length {
        let _ = writeln!(text, "{}  ./{}/{}.tar.gz", dice.text(HEX, 64), dice.pick(WORDS), name(dice));
    }
    text
}

/// The number of kinds of lines that look like secrets.
pub(crate) const KINDS: usize = 26;

/// Generates a line that looks like a secret but is not a secret. The line contains the name of a secret, a
/// placeholder, a pattern, a public key or a random number.
pub(crate) fn look_alike(dice: &mut Dice, kind: usize) -> String {
    match kind % KINDS {
        0 => format!("sha256 = \"{}\"", dice.text(HEX, 64)),
        1 => format!("request_id = \"{}\"", dice.uuid()),
        2 => format!("\"integrity\": \"sha512-{}==\"", dice.text(BASE64, 86)),
        3 => format!("Revert \"commit {}\"", dice.text(HEX, 40)),
        4 => "aws_access_key_id = AKIAIOSFODNN7EXAMPLE".to_owned(),
        5 => "password = os.environ[\"DATABASE_PASSWORD\"]".to_owned(),
        6 => "token: ${{ secrets.GITHUB_TOKEN }}".to_owned(),
        7 => format!("export GITHUB_TOKEN=ghp_{}", "x".repeat(36)),
        8 => "DATABASE_URL=postgres://user:password@localhost:5432/app".to_owned(),
        9 => format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----", dice.text(BASE64, 64)),
        10 => format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----", dice.text(BASE64, 64)),
        11 => "if text.startswith(\"-----BEGIN RSA PRIVATE KEY-----\"):".to_owned(),
        12 => format!("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{} ann@laptop", dice.text(BASE64, 43)),
        13 => format!("background: url(data:image/png;base64,{}==)", dice.text(BASE64, 342)),
        14 => "stripe_key = \"sk_live_\" + \"x\" * 24".to_owned(),
        15 => "//registry.npmjs.org/:_authToken=${NPM_TOKEN}".to_owned(),
        16 => "pattern = re.compile(r\"glpat-[0-9a-zA-Z_-]{20}\")".to_owned(),
        17 => "slack_token: xoxb-your-token-here".to_owned(),
        18 => format!("secret_arn: arn:aws:secretsmanager:eu-1:{}:secret:db-x", dice.text(DIGITS, 12)),
        19 => "api_key: <your API key>".to_owned(),
        20 => format!("image: registry.example.net/app@sha256:{}", dice.text(HEX, 64)),
        21 => "db_password: \"{{ vault_db_password }}\"".to_owned(),
        22 => format!("ETag: W/\"{}\"", dice.text(HEX, 32)),
        23 => format!("contract = \"0x{}\"", dice.text(HEX, 40)),
        24 => "https://user:pass@example.com/path".to_owned(),
        _ => format!("secret_key_ref = \"{}\"", name(dice)),
    }
}
