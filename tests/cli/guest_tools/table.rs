//! Tables of behaviours, each with the command line or the tool call that shows it.

use anyhow::{Context, Result, ensure};
use bottle_test_support::home::TestHome;
use serde_json::Value;

use crate::mcp::Client;

/// A behaviour, the call that shows the behaviour, and the expected result of the call.
pub(super) struct Row {
    shows: &'static str,
    call: Call,
    code: i32,
    expected: Vec<Expected>,
}

enum Call {
    /// A command line of `bottle`, and its standard input.
    Line(&'static str, Vec<u8>),
    /// A tool of `bottle mcp`, and its arguments.
    Tool(&'static str, Value),
}

enum Expected {
    /// A JSON document that matches this value by the rules of [`has`].
    Document(Value),
    /// Exactly this standard output.
    Output(&'static str),
    /// A message that contains this text.
    Message(&'static str),
}

/// What a call returned.
struct Returned {
    code: i32,
    output: String,
    message: String,
    document: Value,
}

/// Creates a row with a command line, which is split as by a shell, and which must exit with this code.
pub(super) fn line(shows: &'static str, line: &'static str, code: i32) -> Row {
    Row { shows, call: Call::Line(line, Vec::new()), code, expected: Vec::new() }
}

/// Creates a row with a tool call that must succeed.
pub(super) fn tool(shows: &'static str, name: &'static str, arguments: Value) -> Row {
    Row { shows, call: Call::Tool(name, arguments), code: 0, expected: Vec::new() }
}

impl Row {
    /// Sets the standard input of the command.
    pub(super) fn input(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        if let Call::Line(_, input) = &mut self.call {
            *input = bytes.into();
        }
        self
    }

    pub(super) fn has(self, document: Value) -> Self {
        self.expecting(Expected::Document(document))
    }

    pub(super) fn prints(self, output: &'static str) -> Self {
        self.expecting(Expected::Output(output))
    }

    pub(super) fn says(self, message: &'static str) -> Self {
        self.expecting(Expected::Message(message))
    }

    /// Expects that the tool call fails with a sentence for the model that contains this text.
    pub(super) fn refused(self, sentence: &'static str) -> Self {
        Self { code: 1, ..self }.says(sentence)
    }

    fn expecting(mut self, expected: Expected) -> Self {
        self.expected.push(expected);
        self
    }

    fn run(&self, home: &TestHome, client: &mut Option<Client>) -> Result<Returned> {
        match &self.call {
            Call::Line(line, input) => {
                let words = shlex::split(line).context("a command line")?;
                let outcome = home.program(words)?.input(input.as_slice()).run()?;
                let document = serde_json::from_str(&outcome.stdout).unwrap_or_default();
                Ok(Returned { code: outcome.code, output: outcome.stdout, message: outcome.stderr, document })
            }
            Call::Tool(name, arguments) => {
                let client = match client {
                    Some(client) => client,
                    None => client.insert(Client::start(home, &["--scope", "all"])?),
                };
                let mut result = client.call(name, arguments.clone())?;
                let text = result["content"][0]["text"].as_str().unwrap_or_default().to_owned();
                let code = i32::from(result["isError"] == true);
                let document = result["structuredContent"].take();
                Ok(Returned { code, output: text.clone(), message: text, document })
            }
        }
    }

    fn check(&self, home: &TestHome, client: &mut Option<Client>) -> Result<()> {
        let returned = self.run(home, client)?;
        let shown = || format!("exit {}\n{}\n{}", returned.code, returned.output, returned.message);
        ensure!(returned.code == self.code, "not exit {}: {}", self.code, shown());
        for expected in &self.expected {
            match expected {
                Expected::Document(wanted) => {
                    ensure!(has(&returned.document, wanted), "not {wanted}: {}", shown());
                }
                Expected::Output(wanted) => {
                    ensure!(returned.output == *wanted, "not {wanted:?}: {}", shown());
                }
                Expected::Message(wanted) => {
                    ensure!(returned.message.contains(wanted), "does not say {wanted:?}: {}", shown());
                }
            }
        }
        Ok(())
    }
}

/// Runs all rows in their order.
///
/// # Errors
/// Returns an error that names each row that fails.
pub(super) fn run_all(home: &TestHome, rows: &[Row]) -> Result<()> {
    let mut client = None;
    let wrong: Vec<String> = rows
        .iter()
        .filter_map(|row| Some(format!("- {}: {:#}", row.shows, row.check(home, &mut client).err()?)))
        .collect();
    ensure!(wrong.is_empty(), "{} of {} rows:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
    Ok(())
}

/// Whether the value `found` matches `wanted`. An object may have further keys, `*text*` matches each text that
/// contains `text`, and `> 5` matches each number above 5.
pub(super) fn has(found: &Value, wanted: &Value) -> bool {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => {
            wanted.iter().all(|(key, value)| found.get(key).is_some_and(|found| has(found, value)))
        }
        (Value::Array(wanted), Value::Array(found)) => {
            wanted.len() == found.len() && wanted.iter().zip(found).all(|(wanted, found)| has(found, wanted))
        }
        (Value::String(wanted), Value::Number(found)) => {
            let least = wanted.strip_prefix("> ").and_then(|number| number.parse::<f64>().ok());
            least.zip(found.as_f64()).is_some_and(|(least, found)| found > least)
        }
        (Value::String(wanted), Value::String(found)) => {
            match wanted.strip_prefix('*').and_then(|wanted| wanted.strip_suffix('*')) {
                Some(part) => found.contains(part),
                None => found == wanted,
            }
        }
        _ => found == wanted,
    }
}

#[test]
fn a_document_has_what_is_wanted_of_it() {
    use serde_json::json;

    let found = json!({"text": "one two", "bytes": 7, "list": [{"a": 1, "b": null}]});
    for wanted in [
        json!({"text": "one two", "bytes": 7}),
        json!({"text": "*e t*", "bytes": "> 6"}),
        json!({"list": [{"b": null}]}),
        json!({}),
    ] {
        assert!(has(&found, &wanted), "{wanted}");
    }
    for wanted in [
        json!({"text": "one"}),
        json!({"text": "*three*"}),
        json!({"bytes": "> 7"}),
        json!({"bytes": "7"}),
        json!({"list": []}),
        json!({"list": [{"a": null}]}),
        json!({"absent": null}),
        json!([]),
    ] {
        assert!(!has(&found, &wanted), "{wanted}");
    }
}
