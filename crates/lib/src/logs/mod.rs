//! The logs of a bottle: the output of its agent, and the decisions of its proxy ([`egress`]).

pub mod egress;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::time::Duration;

use bottle_channel::{Channel, Event};
use bottle_host::Host;
use bottle_instance::record::Record;
use bottle_instance::{State, Store};
use bottle_policy::names::Slug;
use bottle_protocol::session::guest::{GuestEvent, GuestRequest, Logs, STDERR, STDOUT, Size};

use super::connect::{connect, guest_failure, keeper_lost, open_guest};
use super::failure::Failure;

/// The maximum number of bytes that are read of an agent's output. Longer output would be truncated. Truncation does
/// not occur, because the guest keeps only 1 MiB of each stream.
pub const AGENT_LOG_MAX: usize = 8 << 20;

/// The time limit for the guest to report the size of the agent's terminal.
const SIZE_WITHIN: Duration = Duration::from_secs(2);

/// The output of an agent.
#[derive(Debug, Default)]
pub struct AgentLog {
    /// The output, including its terminal escape sequences.
    pub bytes: Vec<u8>,
    /// The size of the agent's terminal. `None` if the agent has no terminal, or if the size is unknown.
    pub terminal: Option<Size>,
    /// Why the output is incomplete. `None` if the output is complete.
    pub lost: Option<Failure>,
}

/// Returns the output of a bottle's agent. The output comes from the guest of a running bottle, or from the file that
/// the keeper saved when the bottle ended.
///
/// # Errors
/// When no bottle has this slug, when its output was not saved, or when the output cannot be read.
pub async fn of_agent(host: &Host, slug: &Slug) -> Result<AgentLog, Failure> {
    match saved_record(host, slug) {
        Some(record) => saved(host, &record),
        None => live(host, slug).await,
    }
}

/// Returns the record of a bottle that ended. The keeper of such a bottle may have saved the agent's output. `None` for
/// any other bottle. If the bottle does not exist, a later connection attempt reports the error.
pub fn saved_record(host: &Host, slug: &Slug) -> Option<Record> {
    match Store::of(host).state(slug) {
        Some(State::Dead(record)) if record.agent_exit.is_some() => Some(*record),
        Some(State::Kept(record)) => Some(*record),
        _ => None,
    }
}

/// Returns the output that the keeper saved.
///
/// # Errors
/// When the output was not saved, or cannot be read.
pub fn saved(host: &Host, record: &Record) -> Result<AgentLog, Failure> {
    let path = Store::of(host).directory(&record.slug).join("logs/agent.log");
    match read(&path) {
        Ok(bytes) => Ok(AgentLog { bytes, terminal: record.terminal_size, lost: None }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(Failure::state("the agent's output was not saved")
                .about(&record.slug)
                .hint("bottle saves the output when a bottle ends in an orderly way"))
        }
        Err(error) => Err(Failure::cannot(format_args!("read {}", path.display()), error)),
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(AGENT_LOG_MAX as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the output that the guest of a running bottle has kept.
///
/// # Errors
/// When the bottle does not run, or its guest does not return the output.
pub async fn live(host: &Host, slug: &Slug) -> Result<AgentLog, Failure> {
    let channel = connect(host, slug).await?;
    let mut log = AgentLog { terminal: terminal_size(&channel).await, ..AgentLog::default() };
    let mut stream = open_guest(&channel, GuestRequest::Logs(Logs { tail: None, follow: false })).await?;
    loop {
        match stream.next().await {
            Some(Event::Data { fd: STDOUT | STDERR, bytes }) => {
                let room = AGENT_LOG_MAX.saturating_sub(log.bytes.len()).min(bytes.len());
                log.bytes.extend_from_slice(&bytes[..room]);
            }
            Some(Event::Message(json)) => {
                if let Ok(GuestEvent::Failed(failure)) = serde_json::from_slice(&json) {
                    return Err(refused(failure, slug));
                }
            }
            Some(Event::Data { .. }) => {}
            Some(Event::Reset(why)) => {
                log.lost = Some(keeper_lost(why).about(slug));
                return Ok(log);
            }
            Some(Event::End) | None => return Ok(log),
        }
    }
}

/// The failure if the guest does not return the output.
pub fn refused(failure: bottle_protocol::session::guest::Failure, slug: &Slug) -> Failure {
    guest_failure(failure).about(slug)
}

/// The size of the agent's terminal. `None` if the agent has no terminal, or if the size is unknown.
pub async fn terminal_size(channel: &Channel) -> Option<Size> {
    let query = async {
        match open_guest(channel, GuestRequest::Status).await.ok()?.receive().await.ok()? {
            GuestEvent::Status { terminal, .. } => terminal,
            _ => None,
        }
    };
    tokio::time::timeout(SIZE_WITHIN, query).await.ok().flatten()
}
