//! Runs a command of this program for a call, with bounds.
//!
//! Each call is a process of its own: it behaves as the command that the documents describe, and a call that is cancelled
//! ends with it.

use std::process::Stdio;
use std::time::Duration;

use bottle_host::{Host, PARENT};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use super::call::Call;
use super::result::{CallResult, RESULT_MAX, sentence, too_large};

/// The maximum size of the notes and errors that are read, in bytes.
const NOTES_MAX: u64 = 64 << 10;

/// How long a command may take to end what it started, after it was cancelled.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// Runs the command of a call. `client` becomes the parent of bottles that it starts. `cancelled` ends it.
///
/// # Errors
/// Returns a sentence for the model.
pub(super) async fn run(
    host: &Host,
    client: &str,
    call: &Call,
    cancelled: impl Future<Output = ()>,
) -> Result<CallResult, String> {
    let mut command = Command::new(&host.program);
    command
        .args(call.line())
        .env(PARENT, client)
        .current_dir(&host.cwd)
        .stdin(if call.input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| format!("cannot run bottle: {error}"))?;
    let limit = call.limit();
    let why = tokio::select! {
        printed = finish(&mut child, call) => return printed,
        () = cancelled => "the call was cancelled".to_owned(),
        () = tokio::time::sleep(limit) => format!("the call took longer than {} seconds", limit.as_secs()),
    };
    end(&mut child).await;
    Err(why)
}

/// Asks a command to end what it started, and kills it if it does not.
async fn end(child: &mut Child) {
    if let Some(pid) = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
        let _ = kill_process(pid, Signal::TERM);
        let _ = tokio::time::timeout(ENDS_WITHIN, child.wait()).await;
    }
    let _ = child.start_kill();
}

async fn finish(child: &mut Child, call: &Call) -> Result<CallResult, String> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let write = async {
        if let (Some(mut stdin), Some(input)) = (stdin, &call.input) {
            // A command that ends without reading all of it reports why.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
    };
    let ((), printed, notes) = tokio::join!(write, read(stdout, RESULT_MAX), read(stderr, NOTES_MAX));
    let printed = printed?.ok_or_else(too_large)?;
    let notes = notes?.unwrap_or_else(|| "the command wrote too many notes".to_owned());
    let status = child.wait().await.map_err(|error| format!("cannot wait for bottle: {error}"))?;
    match serde_json::from_str::<Value>(&printed) {
        // Commands that pass on the exit code of a program print a document too.
        Ok(document) => Ok(CallResult::Document(document)),
        _ if !status.success() => Err(complaint(&notes)),
        _ if !printed.is_empty() => Ok(CallResult::Text(printed)),
        _ => Ok(CallResult::Document(json!({"done": true, "notes": notes.trim()}))),
    }
}

/// Reads a stream to its end. `None` if it is longer than `max`.
async fn read(stream: Option<impl AsyncRead + Unpin>, max: u64) -> Result<Option<String>, String> {
    let Some(mut stream) = stream else { return Ok(Some(String::new())) };
    let mut bytes = Vec::new();
    let failed = |error| format!("cannot read what bottle prints: {error}");
    (&mut stream).take(max).read_to_end(&mut bytes).await.map_err(failed)?;
    // The rest is read too, because a full pipe would stop the command.
    let rest = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.map_err(failed)?;
    Ok((rest == 0).then(|| String::from_utf8_lossy(&bytes).into_owned()))
}

/// The sentence of an error that the program printed as JSON.
fn complaint(notes: &str) -> String {
    let error = notes.lines().rev().find_map(|line| {
        let error = serde_json::from_str::<Value>(line).ok()?["error"].clone();
        Some(sentence(error["subject"].as_str(), error["message"].as_str()?, error["hint"].as_str()))
    });
    error.unwrap_or_else(|| match notes.trim() {
        "" => "the command failed without a message".to_owned(),
        notes => notes.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_is_one_sentence_with_the_next_step() {
        let error =
            r#"{"error": {"kind": "state", "subject": "one", "message": "it ended", "hint": "resume it"}}"#;
        for (notes, says) in [
            (error.to_owned(), "one: it ended (resume it)"),
            (format!("a warning\n{error}\n"), "one: it ended (resume it)"),
            (r#"{"error": {"message": "no"}}"#.to_owned(), "no"),
            ("plain\n".to_owned(), "plain"),
            (String::new(), "the command failed without a message"),
        ] {
            assert_eq!(complaint(&notes), says, "{notes}");
        }
    }
}
