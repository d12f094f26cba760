//! `bottle mcp install`: registers the server in a client.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::cli::error::CliError;
use crate::cli::exit;
use crate::cli::output::Output;
use crate::host::{Host, files};

/// The name under which clients show the server.
const NAME: &str = "bottle";

/// Register `bottle mcp` in a client
///
/// Claude Code, codex and VS Code are asked to do it with their own command; for Cursor, `~/.cursor/mcp.json` is changed.
#[derive(Debug, clap::Args)]
pub(crate) struct Install {
    /// The client
    #[arg(value_enum)]
    client: Client,
    /// The bottles that the client may use, as for `bottle mcp`
    #[arg(long, value_name = "SCOPE")]
    scope: Vec<String>,
    /// Show what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Client {
    /// Claude Code
    Claude,
    /// codex
    Codex,
    /// Cursor
    Cursor,
    /// VS Code
    Vscode,
}

/// What registers the server.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// A command of the client.
    Run(Vec<String>),
    /// An entry in a file of the client.
    Write(PathBuf),
}

impl Install {
    pub(super) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let server = server(host, &self.scope)?;
        match step(self.client, &server, &host.user_home) {
            Step::Run(command) => {
                let shown = shlex::try_join(command.iter().map(String::as_str)).unwrap_or_default();
                if self.dry_run {
                    output.print(&shown)?;
                    return Ok(exit::DONE);
                }
                run(&command, &shown)?;
            }
            Step::Write(path) => {
                let text = with_server(&path, &server)?;
                if self.dry_run {
                    output.print(&format!("{}:\n{text}", path.display()))?;
                    return Ok(exit::DONE);
                }
                write(&path, &text)
                    .map_err(|error| CliError::cannot(format_args!("write {}", path.display()), error))?;
            }
        }
        output.note(format!("the MCP server {NAME} is registered; start the client again to use it"));
        Ok(exit::DONE)
    }
}

/// The command line of the server.
fn server(host: &Host, scope: &[String]) -> Result<Vec<String>, CliError> {
    let program = host.program.to_str().ok_or_else(|| {
        CliError::usage("the path of the program is not UTF-8").hint("install bottle in another folder")
    })?;
    let mut server = vec![program.to_owned(), "mcp".to_owned()];
    server.extend(scope.iter().map(|scope| format!("--scope={scope}")));
    Ok(server)
}

fn step(client: Client, server: &[String], home: &Path) -> Step {
    let with = |words: &[&str]| {
        let words = words.iter().map(|&word| word.to_owned());
        Step::Run(words.chain(server.iter().cloned()).collect())
    };
    match client {
        Client::Claude => with(&["claude", "mcp", "add", "--scope", "user", NAME, "--"]),
        Client::Codex => with(&["codex", "mcp", "add", NAME, "--"]),
        Client::Vscode => {
            let entry = json!({"name": NAME, "command": server[0], "args": server[1..]});
            Step::Run(vec!["code".to_owned(), "--add-mcp".to_owned(), entry.to_string()])
        }
        Client::Cursor => Step::Write(home.join(".cursor/mcp.json")),
    }
}

fn run(command: &[String], shown: &str) -> Result<(), CliError> {
    let status = Command::new(&command[0]).args(&command[1..]).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(CliError::failed(format!("`{shown}` failed: {status}"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(CliError::failed(format!("the program `{}` is not installed", command[0]))
                .hint(format!("install the client, or run this where it is: {shown}")))
        }
        Err(error) => Err(CliError::cannot(format_args!("run `{shown}`"), error)),
    }
}

/// The text of a client's file with the server in it.
fn with_server(path: &Path, server: &[String]) -> Result<String, CliError> {
    let unusable = |why: String| {
        CliError::failed(format!("cannot add the server to {}: {why}", path.display()))
            .hint(format!("add it by hand: {}", json!({NAME: {"command": server[0], "args": server[1..]}})))
    };
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => "{}".to_owned(),
        text => text.map_err(|error| unusable(error.to_string()))?,
    };
    let mut document: Value = serde_json::from_str(&text).map_err(|error| unusable(error.to_string()))?;
    let servers = document
        .as_object_mut()
        .map(|document| document.entry("mcpServers").or_insert_with(|| json!({})))
        .and_then(Value::as_object_mut)
        .ok_or_else(|| unusable("it has another form".to_owned()))?;
    servers.insert(NAME.to_owned(), json!({"command": server[0], "args": server[1..]}));
    serde_json::to_string_pretty(&document)
        .map(|text| text + "\n")
        .map_err(|error| CliError::cannot("write JSON", error))
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    files::replace(path, |file| file.write_all(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn each_client_is_asked_in_its_own_way() {
        let server = words("/opt/bottle mcp --scope=all");
        let home = Path::new("/home/me");
        for (client, wanted) in [
            (
                Client::Claude,
                Step::Run(words("claude mcp add --scope user bottle -- /opt/bottle mcp --scope=all")),
            ),
            (Client::Codex, Step::Run(words("codex mcp add bottle -- /opt/bottle mcp --scope=all"))),
            (
                Client::Vscode,
                Step::Run(words(
                    r#"code --add-mcp {"args":["mcp","--scope=all"],"command":"/opt/bottle","name":"bottle"}"#,
                )),
            ),
            (Client::Cursor, Step::Write("/home/me/.cursor/mcp.json".into())),
        ] {
            assert_eq!(step(client, &server, home), wanted);
        }
    }

    #[test]
    fn other_servers_of_a_file_stay() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("mcp.json");
        let server = words("/opt/bottle mcp");
        let parsed = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
        let own = json!({"command": "/opt/bottle", "args": ["mcp"]});
        assert_eq!(
            parsed(&with_server(&path, &server).expect("a text")),
            json!({"mcpServers": {"bottle": own}})
        );
        fs::write(&path, r#"{"mcpServers": {"a": {"command": "a"}, "bottle": 1}, "b": 2}"#).expect("written");
        assert_eq!(
            parsed(&with_server(&path, &server).expect("a text")),
            json!({"mcpServers": {"a": {"command": "a"}, "bottle": own}, "b": 2})
        );
        for text in ["// a comment\n{}", "[]", r#"{"mcpServers": 3}"#] {
            fs::write(&path, text).expect("written");
            assert!(with_server(&path, &server).is_err(), "{text}");
            assert_eq!(fs::read_to_string(&path).expect("the file"), text);
        }
    }
}
