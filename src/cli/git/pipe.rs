//! `bottle __git-pipe HOST COMMAND`: the transport between the host's git and a bottle.
//!
//! Git starts this program in place of ssh. `bottle pull` passes the bottle's slug and the repository's path in
//! environment variables. The command that runs in the bottle is fixed: the arguments do not affect it.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use bottle_channel::{Event, StreamReceiver, StreamSender};
use bottle_contract::names::{Slug, WORKSPACE};
use bottle_contract::session::guest::{Exit, GuestEvent, GuestRequest, Process, STDERR, STDIN, STDOUT};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::backend::Access;
use crate::cli::connect::{connect_or_open_files, open_guest};
use crate::cli::error::CliError;
use crate::cli::output::inert;
use crate::host::Host;

/// The environment variable that contains the bottle's slug.
pub(super) const SLUG: &str = "BOTTLE_GIT_PIPE";

/// The environment variable that contains the path of the repository in the bottle.
pub(super) const PATH: &str = "BOTTLE_GIT_PIPE_PATH";

/// The maximum number of bytes that one pull reads from a bottle. A pull that gets more fails.
const MAX_BYTES: u64 = 8 << 30;

/// How long the bottle may send nothing before the transport fails. Git sends nothing while it creates or checks a
/// large pack.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);

/// The maximum number of bytes kept of the standard error of git in the bottle. The rest is dropped.
const MAX_STDERR: usize = 4096;

/// Runs the transport until either side ends it.
#[must_use]
pub(crate) fn run() -> ExitCode {
    match super::super::block_on(forward()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // Git shows this text as part of its standard error, which `bottle pull` reads.
            let _ = writeln!(std::io::stderr(), "{}", inert(&error.message));
            ExitCode::FAILURE
        }
    }
}

async fn forward() -> Result<u8, CliError> {
    let host = Host::of_this_process()?;
    let slug: Slug = host
        .var(SLUG)
        .and_then(|slug| slug.parse().ok())
        .ok_or_else(|| CliError::usage("only `bottle pull` runs this command"))?;
    let channel = connect_or_open_files(&host, &slug, Access::Read).await?;
    let words = ["git", "upload-pack", host.var(PATH).unwrap_or(WORKSPACE)];
    let process = Process {
        argv: words.map(str::to_owned).to_vec(),
        env: [("LC_ALL".to_owned(), "C".to_owned())].into(),
        stdin: true,
        ..Process::default()
    };
    let stream = open_guest(&channel, GuestRequest::Exec(process)).await?;
    let (sender, receiver) = stream.split();
    tokio::select! {
        ended = to_git(receiver) => ended,
        never = to_bottle(&sender) => never,
    }
}

/// Forwards git's output to the bottle, and then the end of the stream.
async fn to_bottle(sender: &StreamSender) -> Result<u8, CliError> {
    let mut input = tokio::io::stdin();
    let mut buffer = vec![0; 16 << 10];
    loop {
        let read = input.read(&mut buffer).await.unwrap_or(0);
        if sender.data(STDIN, &buffer[..read]).await.is_err() || read == 0 {
            return std::future::pending().await;
        }
    }
}

/// Forwards the bottle's output to git.
async fn to_git(mut receiver: StreamReceiver) -> Result<u8, CliError> {
    let mut output = tokio::io::stdout();
    let (mut passed, mut stderr) = (0_u64, Vec::new());
    loop {
        let event = tokio::time::timeout(IDLE_TIMEOUT, receiver.next()).await;
        match event.map_err(|_| CliError::failed("git in the bottle timed out"))? {
            Some(Event::Data { fd: STDOUT, bytes }) => {
                passed += bytes.len() as u64;
                if passed > MAX_BYTES {
                    return Err(CliError::failed(format!(
                        "the bottle sent more than {} GiB",
                        MAX_BYTES >> 30
                    )));
                }
                let written = async {
                    output.write_all(&bytes).await?;
                    output.flush().await
                };
                written.await.map_err(|error| CliError::cannot("write to git", error))?;
            }
            Some(Event::Data { fd: STDERR, bytes }) => {
                let room = MAX_STDERR - stderr.len();
                stderr.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
            Some(Event::Data { .. }) => {}
            Some(Event::Message(json)) => match serde_json::from_slice(&json) {
                Ok(GuestEvent::Exited(Exit::Code(0))) => return Ok(0),
                Ok(GuestEvent::Exited(_)) => {
                    let stderr_text = String::from_utf8_lossy(&stderr).into_owned();
                    return Err(CliError::failed(format!(
                        "git in the bottle failed: {}",
                        stderr_text.trim()
                    )));
                }
                Ok(GuestEvent::Failed(failure)) => return Err(CliError::failed(failure.message)),
                _ => {}
            },
            Some(Event::End | Event::Reset(_)) | None => {
                return Err(CliError::failed("the bottle closed the connection"));
            }
        }
    }
}
