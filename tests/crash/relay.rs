//! A relay between the program and an engine's socket. It records every call, and kills a process at a chosen call.
//!
//! ```text
//!   bottle ══ DOCKER_HOST ══► relay ══► engine
//!              before: killed before the engine gets the call │ after: killed before it gets the answer
//! ```
//! The program cannot detect the relay, so the test can kill the program at each of its calls.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, Signal, kill_process};

/// The usual path of the engine's socket.
const ENGINE: &str = "/var/run/docker.sock";
/// The size limit in bytes of a request's head. The program's requests have much shorter heads. A longer head ends the
/// connection.
const HEAD_MAX: usize = 64 << 10;

/// The relay. It runs until the test's process ends.
pub(crate) struct Relay {
    socket: PathBuf,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    calls: Vec<Call>,
    strike: Option<Strike>,
    struck: Option<Call>,
}

/// A recorded call.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// The process that made the call.
    pub(crate) by: Pid,
    /// The method and the path of the call (`POST /networks/create`).
    pub(crate) what: String,
}

/// The call at which to kill, and the process to kill.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strike {
    /// The index of the call, from 0.
    pub(crate) call: usize,
    /// Whether to kill before or after the engine performs the call.
    pub(crate) when: When,
    /// The process to kill.
    pub(crate) whom: Whom,
}

/// The process that is killed at the chosen call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whom {
    /// The process that makes the call.
    Caller,
    /// The process that made the first call, which is the command that the user typed. The caller gets its answer.
    First,
}

/// Whether to kill before the engine gets the call, or after the engine performed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    Before,
    After,
}

impl Call {
    /// Whether the call was made by the command that the user typed, and not by a keeper.
    pub(crate) fn is_typed(&self, all: &[Self]) -> bool {
        all.first().is_some_and(|first| first.by == self.by)
    }

    /// Whether the call changes something on the engine.
    pub(crate) fn changes(&self) -> bool {
        !self.what.starts_with("GET") && !self.what.starts_with("HEAD")
    }
}

impl Relay {
    /// Starts a relay that listens at this path and kills at most one process.
    pub(crate) fn new(socket: PathBuf, strike: Option<Strike>) -> Self {
        let listener = UnixListener::bind(&socket).expect("a socket");
        let shared = Arc::new(Mutex::new(Shared { strike, ..Shared::default() }));
        let of_all = shared.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let shared = of_all.clone();
                thread::spawn(move || serve(client, &shared));
            }
        });
        Self { socket, shared }
    }

    /// The value for `DOCKER_HOST`.
    pub(crate) fn address(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// The calls recorded until now.
    pub(crate) fn calls(&self) -> Vec<Call> {
        locked(&self.shared).calls.clone()
    }

    /// Whether the process to kill was killed.
    pub(crate) fn struck(&self) -> bool {
        locked(&self.shared).struck.is_some()
    }

    /// Disables further kills. Returns the call at which a process was killed.
    pub(crate) fn spare(&self) -> Option<Call> {
        let mut shared = locked(&self.shared);
        shared.strike = None;
        shared.struck.clone()
    }
}

fn locked(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().expect("no test panics with it")
}

/// Serves one connection, which carries sequential requests or an upgraded stream.
fn serve(client: UnixStream, shared: &Arc<Mutex<Shared>>) {
    let Ok(by) = socket_peercred(&client).map(|peer| peer.pid) else { return };
    let Ok(engine) = UnixStream::connect(Path::new(ENGINE)) else { return };
    // `Some` if the answer to the current call must not be delivered.
    let silenced = Arc::<Mutex<Option<Pid>>>::default();
    let (of_answers, answers) =
        (silenced.clone(), [&engine, &client].map(|end| end.try_clone().expect("fd")));
    thread::spawn(move || back(answers, by, &of_answers));
    // If the client disconnected, the next read or write fails, so this error is ignored.
    let _ = forth(client.try_clone().expect("fd"), engine.try_clone().expect("fd"), by, shared, &silenced);
    let _ = engine.shutdown(Shutdown::Write);
}

fn back([mut engine, mut client]: [UnixStream; 2], by: Pid, silenced: &Mutex<Option<Pid>>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = engine.read(&mut buffer) {
        match silenced.lock().expect("lock").take() {
            Some(doomed) if kill(doomed) == by => break,
            _ => {}
        }
        if client.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = engine.shutdown(Shutdown::Both);
}

fn forth(
    mut client: UnixStream,
    mut engine: UnixStream,
    by: Pid,
    shared: &Mutex<Shared>,
    silenced: &Mutex<Option<Pid>>,
) -> std::io::Result<()> {
    let mut held = Vec::new();
    loop {
        let Some(end) = head(&mut client, &mut held)? else { return engine.write_all(&held) };
        let text = String::from_utf8_lossy(&held[..end]).to_ascii_lowercase();
        let first = String::from_utf8_lossy(&held[..end]).lines().next().unwrap_or_default().to_owned();
        match note(shared, by, &first) {
            Some((When::Before, doomed)) if kill(doomed) == by => return Ok(()),
            Some((When::After, doomed)) => *silenced.lock().expect("lock") = Some(doomed),
            _ => {}
        }
        let length = text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
        // A request whose body has no known length is the last one on its connection.
        if text.contains("\r\nupgrade:") || text.contains("\r\ntransfer-encoding:") {
            engine.write_all(&held)?;
            std::io::copy(&mut client, &mut engine)?;
            return Ok(());
        }
        let whole = end + length.unwrap_or(0_usize);
        while held.len() < whole {
            read_more(&mut client, &mut held)?;
        }
        engine.write_all(&held[..whole])?;
        held.drain(..whole);
    }
}

/// Reads until a complete request head is buffered and returns its length. `None` at the end of the stream.
fn head(client: &mut UnixStream, held: &mut Vec<u8>) -> std::io::Result<Option<usize>> {
    loop {
        if let Some(at) = held.windows(4).position(|four| four == b"\r\n\r\n") {
            return Ok(Some(at + 4));
        }
        if held.len() > HEAD_MAX || read_more(client, held)? == 0 {
            return Ok(None);
        }
    }
}

fn read_more(client: &mut UnixStream, held: &mut Vec<u8>) -> std::io::Result<usize> {
    let mut buffer = [0; 16 << 10];
    let read = client.read(&mut buffer)?;
    held.extend_from_slice(&buffer[..read]);
    if read == 0 && !held.is_empty() {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(read)
}

/// Records a call. If it is the chosen call, returns the process to kill.
fn note(shared: &Mutex<Shared>, by: Pid, first: &str) -> Option<(When, Pid)> {
    let mut shared = locked(shared);
    let number = shared.calls.len();
    let what = first.split(['?', ' ']).take(2).collect::<Vec<_>>().join(" ");
    let call = Call { by, what };
    shared.calls.push(call.clone());
    let strike = shared.strike.take_if(|strike| strike.call == number)?;
    shared.struck = Some(call);
    let whom = match strike.whom {
        Whom::Caller => by,
        Whom::First => shared.calls[0].by,
    };
    Some((strike.when, whom))
}

/// Kills the process and returns its id.
fn kill(doomed: Pid) -> Pid {
    // The process may already have exited.
    let _ = kill_process(doomed, Signal::KILL);
    doomed
}
