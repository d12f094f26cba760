//! Tests what `bottle mcp` returns: secrets of the bottle and values of the caller are replaced in every spelling, and
//! wherever a part begins.

use anyhow::{Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bottle_test_support::home::TestHome;
use serde_json::{Value, json};

use crate::home::run;
use crate::mcp::Client;

/// The value of a secret variable of the bottle.
const HELD: &str = "held/8f3K\"q2Lm9Z x4Vb7N";

/// A value that only the caller knows.
const MINE: &str = "callers-own-5Rt6Yh7Uj8";

/// Returns a text with a value in all its spellings.
fn spelled(value: &str) -> String {
    let percent: String = value
        .bytes()
        .map(|byte| match byte {
            b'-' => "-".to_owned(),
            byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect();
    let json = json!(value).to_string();
    format!(
        "plain: {value}\nbase64: {}\nbase64 inside: {}\nhex: {}\npercent: {percent}\njson: {json}\n",
        STANDARD.encode(value),
        STANDARD.encode(format!("user:{value}")),
        hex::encode(value),
    )
}

/// Fails if a text contains a spelling of a value, or too few masks.
fn redacted(text: &str, masks: usize) -> Result<()> {
    ensure!(text.matches("[REDACTED]").count() >= masks, "{text}");
    for value in [HELD, MINE] {
        let lines = spelled(value);
        for line in lines.lines().filter_map(|line| line.split_once(": ")) {
            ensure!(!text.contains(line.1), "{}: {text}", line.0);
        }
    }
    Ok(())
}

#[test]
fn no_tool_returns_a_secret_of_the_bottle_or_a_value_of_the_caller() -> Result<()> {
    let mut home = TestHome::new()?;
    if !home.runs("no_tool_returns_a_secret_of_the_bottle_or_a_value_of_the_caller", "linux")? {
        return Ok(());
    }
    home.bottle(
        "holds",
        "---\nbackend: linux\nagent_provider: {template: command, command: [sleep, '600']}\nenv: {HELD: $HELD}\n---\n",
    )?;
    home.agent("holds", "---\nbottle: holds\n---\n")?;
    home.env("HELD", HELD).env("MINE", MINE).env("SHORT", "seven-7");
    for (name, why) in [("SHORT", "shorter than 8 bytes"), ("UNSET", "\"UNSET\" is not set")] {
        let refused = run(&home, &["mcp", "--redact", name])?.expect_code(2);
        ensure!(refused.stderr.contains(why), "{}", refused.stderr);
    }
    let mut client = Client::start(&home, &["--redact", "MINE"])?;
    client.done("bottle_start", json!({"agent": "holds", "label": "one"}))?;
    let call = |more: Value| {
        let mut arguments = json!({"bottle": "one"});
        if let (Value::Object(all), Value::Object(more)) = (&mut arguments, more) {
            all.extend(more);
        }
        arguments
    };
    let text = spelled(HELD) + &spelled(MINE);
    let written = client.done("file_write", call(json!({"path": "notes", "content": text})))?;
    redacted(&written.to_string(), 0)?;

    let shown = client.done("terminal", call(json!({"command": ["cat", "notes"]})))?;
    redacted(shown["stdout"]["text"].as_str().unwrap_or_default(), 12)?;
    // The output arrives in two parts, and each contains a part of the value.
    let (one, two) = MINE.split_at(9);
    let script = format!("printf %s '{one}'; sleep 0.3; printf '%s\\n' '{two}'");
    let shown = client.done("terminal", call(json!({"command": ["sh", "-c", script]})))?;
    ensure!(shown["stdout"]["text"] == "[REDACTED]\n", "{shown}");

    let whole = client.done("file_read", call(json!({"path": "notes"})))?;
    let whole = whole["text"].as_str().unwrap_or_default().to_owned();
    redacted(&whole, 12)?;
    let lines = client.done("file_read", call(json!({"path": "notes", "line": 1})))?;
    redacted(&lines.to_string(), 12)?;
    let found = client.done("file_search", call(json!({"path": "notes", "pattern": ":"})))?;
    redacted(&found.to_string(), 12)?;
    let started = client.done("process_start", call(json!({"command": ["cat", "notes"], "name": "cat"})))?;
    redacted(&started.to_string(), 0)?;
    client.done("process_wait", call(json!({"process": ["cat"]})))?;
    for size in [7_u64, 64] {
        for (tool, more) in [
            ("file_read", json!({"path": "notes", "max": size})),
            ("process_log", json!({"process": "cat", "max_output": size})),
        ] {
            let position = if tool == "file_read" { "offset" } else { "from" };
            let (mut parts, mut at) = (String::new(), 0);
            loop {
                let mut more = more.clone();
                more[position] = json!(at);
                let part = client.done(tool, call(more))?;
                parts += part["text"].as_str().unwrap_or_default();
                let next = part["next"].as_u64().unwrap_or(at);
                if next <= at {
                    break;
                }
                at = next;
            }
            ensure!(parts == whole, "{tool} in parts of {size} bytes: {parts}");
        }
    }
    client.done("bottle_stop", call(json!({"time": 0})))?;
    Ok(())
}
