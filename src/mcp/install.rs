//! `bottle mcp install`: registers the server in a client.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bottle_host::{Host, files, plain_file};
use bottle_repository::program::{absolute_path, find};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::timeout;

use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::Output;
use crate::console::runtime::block_on;

/// The name under which clients show the server.
const NAME: &str = "bottle";

/// The environment variables that a client's command gets, besides `PATH`.
const PASSED: [&str; 11] = [
    "HOME",
    "USER",
    "LANG",
    "LC_ALL",
    "TERM",
    "TMPDIR",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
    "CLAUDE_CONFIG_DIR",
    "CODEX_HOME",
];

/// The time limit of a client's command.
const REGISTERS_WITHIN: Duration = Duration::from_secs(60);

/// The maximum size of a client's configuration file, in bytes.
const MAX_CLIENT_FILE: u64 = 1 << 20;

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum Client {
    /// Claude Code
    Claude,
    /// codex
    Codex,
    /// Cursor
    Cursor,
    /// VS Code
    Vscode,
}

/// How the server is registered.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Run this command of the client.
    Run(Vec<String>),
    /// Add an entry to this file of the client.
    Write(PathBuf),
}

/// Registers the server in a client, with the scopes in `scope`. With `dry_run`, only prints what would be done.
///
/// # Errors
/// Returns an error if the client's command fails, or if the client's file cannot be changed.
pub(crate) fn install(
    host: &Host,
    output: &Output,
    client: Client,
    scope: &[String],
    dry_run: bool,
) -> Result<u8, CliError> {
    let server = server(host, scope)?;
    match step(client, &server, &host.user_home) {
        Step::Run(command) => {
            let shown = shlex::try_join(command.iter().map(String::as_str)).unwrap_or_default();
            if dry_run {
                output.print(&shown)?;
                return Ok(exit::DONE);
            }
            run(host, &command, &shown)?;
        }
        Step::Write(path) => {
            let text = with_server(&path, &server)?;
            if dry_run {
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

/// Returns the command line that starts the server.
fn server(host: &Host, scope: &[String]) -> Result<Vec<String>, CliError> {
    let program = host.program.to_str().ok_or_else(|| {
        CliError::usage("the path of the program is not UTF-8").hint("install bottle in another directory")
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

/// Runs a command of a client in the user's home directory, so that no file in the working directory influences the
/// command.
fn run(host: &Host, command: &[String], shown: &str) -> Result<(), CliError> {
    let variable = |name: &str| host.env.get(OsStr::new(name));
    let path = absolute_path(variable("PATH").map_or(OsStr::new(""), OsString::as_os_str));
    let program = find(&command[0], &path).ok_or_else(|| {
        CliError::failed(format!("the program `{}` is not installed", command[0]))
            .hint(format!("install the client, or run this where it is: {shown}"))
    })?;
    let passed = PASSED.iter().filter_map(|name| Some((name, variable(name)?)));
    let mut client = Command::new(program);
    client.args(&command[1..]).env_clear().envs(passed).env("PATH", &path).current_dir(&host.user_home);
    client.stdin(Stdio::null()).kill_on_drop(true);
    let status = block_on(async { Ok(timeout(REGISTERS_WITHIN, client.status()).await) })?;
    match status {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(CliError::failed(format!("`{shown}` failed: {status}"))),
        Ok(Err(error)) => Err(CliError::cannot(format_args!("run `{shown}`"), error)),
        Err(_) => {
            let seconds = REGISTERS_WITHIN.as_secs();
            Err(CliError::failed(format!("`{shown}` did not end within {seconds} s"))
                .hint("run it by hand to see the cause"))
        }
    }
}

/// Returns the text of a client's file, with an entry for the server.
fn with_server(path: &Path, server: &[String]) -> Result<String, CliError> {
    let unusable = |why: String| {
        CliError::failed(format!("cannot add the server to {}: {why}", path.display()))
            .hint(format!("add it by hand: {}", json!({NAME: {"command": server[0], "args": server[1..]}})))
    };
    // A symlink is not followed, because the file is replaced later, and the target may belong to another program.
    let text = match plain_file::read(path, MAX_CLIENT_FILE) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => b"{}".to_vec(),
        text => text.map_err(|error| unusable(error.to_string()))?,
    };
    let mut document: Value = serde_json::from_slice(&text).map_err(|error| unusable(error.to_string()))?;
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
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
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
    fn a_client_is_found_in_absolute_directories_and_gets_no_secret() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().expect("directory");
        let at = |name: &str| directory.path().join(name);
        let script = format!("#!/bin/sh\nenv > {}; pwd > {}\n", at("env").display(), at("pwd").display());
        fs::write(at("client"), script).expect("written");
        fs::set_permissions(at("client"), fs::Permissions::from_mode(0o700)).expect("mode");
        let mut host = Host::of_this_process().expect("host");
        host.user_home = directory.path().canonicalize().expect("path");
        host.env.insert("TOKEN".into(), "a-secret".into());
        let command = words("client add");
        // A relative or empty entry of `PATH` refers to the working directory. The files in the working directory come
        // from a project.
        for path in [".:", "", "bin"] {
            host.env.insert("PATH".into(), path.into());
            let error = run(&host, &command, "client add").expect_err("not found");
            assert!(error.failure.message.contains("is not installed"), "{}", error.failure.message);
        }
        let path = std::env::join_paths([
            Path::new("."),
            directory.path(),
            Path::new("/usr/bin"),
            Path::new("/bin"),
        ]);
        host.env.insert("PATH".into(), path.expect("PATH"));
        run(&host, &command, "client add").expect("run");
        let env = fs::read_to_string(at("env")).expect("written");
        assert!(!env.contains("a-secret") && !env.contains("PATH=.:"), "{env}");
        let pwd = fs::read_to_string(at("pwd")).expect("written");
        assert_eq!(Path::new(pwd.trim()), host.user_home);
    }

    #[test]
    fn other_servers_of_a_file_stay() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("mcp.json");
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
        // A symlink is not followed.
        let link = directory.path().join("link.json");
        std::os::unix::fs::symlink(&path, &link).expect("link");
        assert!(with_server(&link, &server).is_err());
        for text in ["// a comment\n{}", "[]", r#"{"mcpServers": 3}"#] {
            fs::write(&path, text).expect("written");
            assert!(with_server(&path, &server).is_err(), "{text}");
            assert_eq!(fs::read_to_string(&path).expect("the file"), text);
        }
    }
}
