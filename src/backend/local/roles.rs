//! Starting pid 1 or the bundle and following its setup.
//!
//! It is this program again with its label as arguments, an empty environment, its specification on
//! standard input ([`super::handoff`]) and its own bounded log file for what it says before its channel is
//! up. It is not tied to the life of its starter once it has that; one that waits for it ends with its starter.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bottle_contract::names::Slug;
use serde::Serialize;
use tokio::process::{Child, Command};

use super::Scope;
use super::inventory::resource;
use super::labels::{self, Role};
use super::spawn_ipc::{Report, SetupFailure, Starter};
use crate::backend::linux::LAY_OVER;
use crate::backend::{BackendError, Ledger};
use crate::host::process::ProcessId;

/// A log beyond this is set aside when the next process opens it, and the one before is dropped.
const LOG_MAX: u64 = 1 << 20;

/// As much of a log's end as has its last line.
const LAST_LINE_MAX: u64 = 4096;

/// A process that has only been set up has nothing in it that could hold it.
const DIES_WITHIN: Duration = Duration::from_secs(5);

/// A process that waits for what it is to do.
#[derive(Debug)]
struct Waiting {
    role: Role,
    slug: Slug,
    child: Child,
    ours: UnixStream,
    log: Option<PathBuf>,
}

/// Processes that were started ahead: loading a program takes as long as deciding what it is to do, and goes on
/// beside it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ahead(Arc<Mutex<Vec<Waiting>>>);

impl Ahead {
    fn lock(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, role: Role, slug: &Slug) -> Option<Waiting> {
        let mut waiting = self.lock();
        let at = waiting.iter().position(|waiting| waiting.role == role && waiting.slug == *slug)?;
        Some(waiting.swap_remove(at))
    }

    /// Ends those of a bottle that nobody came for.
    pub(crate) async fn end(&self, slug: &Slug) {
        for role in AHEAD {
            if let Some(mut waiting) = self.take(role, slug) {
                // One that has ended already is as good.
                let _ = waiting.child.kill().await;
            }
        }
    }
}

/// What is started ahead.
const AHEAD: [Role; 2] = [Role::Bundle, Role::Guest];

/// Starts what a bottle is made of ahead of [`start`], which finds them. Those that nobody comes for end with the
/// bottle, or with this process, and are found by their labels as all others are.
///
/// # Errors
/// As [`start`].
pub(crate) fn start_ahead(scope: &Scope, slug: &Slug, state: &Path) -> Result<(), BackendError> {
    for role in AHEAD {
        let waiting = spawn(scope, role, slug, Some(state))?;
        scope.ahead.lock().push(waiting);
    }
    Ok(())
}

/// A process that was just started.
pub(crate) struct Started {
    scope: Scope,
    role: Role,
    slug: Slug,
    child: Child,
    starter: Starter,
    log: Option<PathBuf>,
}

/// Starts a role with its specification and the descriptors that go with it; what it says goes to a log
/// under `state`, or nowhere.
///
/// # Errors
/// [`BackendError`] when the program cannot be run.
pub(crate) fn start<S: Serialize>(
    scope: &Scope,
    role: Role,
    slug: &Slug,
    state: Option<&Path>,
    spec: &S,
    fds: &[BorrowedFd<'_>],
) -> Result<Started, BackendError> {
    let failed = |error: io::Error| BackendError::failed(format!("cannot start {}: {error}", role.words()));
    // One without a log is not of a bottle.
    let waiting = match state.and_then(|_| scope.ahead.take(role, slug)) {
        Some(waiting) => waiting,
        None => spawn(scope, role, slug, state)?,
    };
    let Waiting { role, slug, child, ours, log } = waiting;
    let starter = Starter::send(ours, spec, fds).map_err(failed)?;
    Ok(Started { scope: scope.clone(), role, slug, child, starter, log })
}

fn spawn(scope: &Scope, role: Role, slug: &Slug, state: Option<&Path>) -> Result<Waiting, BackendError> {
    let failed = |error: io::Error| BackendError::failed(format!("cannot start {}: {error}", role.words()));
    let (ours, theirs) = Starter::pair().map_err(failed)?;
    let mut command = Command::new(&scope.program);
    command
        .arg0("bottle")
        .args(labels::arguments(role, &scope.label, slug))
        .env_clear()
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if let Some(state) = state {
        let log = open_log(&log_of(state, role)).map_err(failed)?;
        command.stdout(log.try_clone().map_err(failed)?).stderr(log);
    }
    let child = command.spawn().map_err(failed)?;
    let log = state.map(|state| log_of(state, role));
    Ok(Waiting { role, slug: slug.clone(), child, ours, log })
}

/// What has to be done from outside while a process is set up.
pub(crate) trait MapIds: Send + Sync {
    /// Maps the ids of the new user namespace that process `pid` stands in.
    ///
    /// # Errors
    /// When they cannot be mapped.
    fn map_ids(&self, pid: u32) -> io::Result<()>;
}

/// Nothing: the process stays in the namespaces of its starter, or maps its ids itself.
pub(crate) struct NoIdMap;

impl MapIds for NoIdMap {
    fn map_ids(&self, _: u32) -> io::Result<()> {
        Err(io::Error::other("this process has no ids to map"))
    }
}

impl Started {
    /// Follows it until it is set up, and records the process that stays as soon as it is known. `None` when
    /// that one had ended by then.
    ///
    /// # Errors
    /// [`BackendError`] with the one cause when it could not be set up; then it has ended.
    pub(crate) async fn settle(
        mut self,
        map_ids: &dyn MapIds,
        ledger: &dyn Ledger,
    ) -> Result<Option<ProcessId>, BackendError> {
        let settled = self.follow(map_ids, ledger).await;
        if settled.is_err() {
            self.end().await;
        }
        // Reaps it whenever it ends; a bundle lives as long as its bottle.
        tokio::spawn(async move { self.child.wait().await });
        settled
    }

    /// Ends what there is of it. The ledger may lack it, and nobody will ask for it again.
    async fn end(&mut self) {
        // A failure here would hide the one that led here; what is left over is found by its label.
        let _ = self.child.kill().await;
        let (scope, role, slug) = (self.scope.clone(), self.role, self.slug.clone());
        let rest = move || {
            let found = labels::find(&scope).unwrap_or_default();
            for labelled in found.into_iter().filter(|found| found.role == role && found.slug == slug) {
                let _ = labelled.process.kill(DIES_WITHIN);
            }
        };
        let _ = tokio::task::spawn_blocking(rest).await;
        self.scope.ahead.end(&self.slug).await;
    }

    async fn follow(
        &mut self,
        map_ids: &dyn MapIds,
        ledger: &dyn Ledger,
    ) -> Result<Option<ProcessId>, BackendError> {
        let what = self.role.words();
        let failed = |error: io::Error| BackendError::failed(format!("{what} could not be set up: {error}"));
        let mut stays = None;
        loop {
            match self.starter.report().await.map_err(failed)? {
                Some(Report::AwaitsIds) => {
                    let pid = self.child.id().ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
                    map_ids.map_ids(pid).map_err(failed)?;
                    self.starter.go_on().await.map_err(failed)?;
                }
                Some(Report::Born { pid }) => {
                    if let Some(process) = ProcessId::of(pid).map_err(failed)? {
                        ledger.record(resource(&self.slug, self.role.kind(), process.to_string()))?;
                        stays = Some(process);
                    }
                }
                Some(Report::Ready) => return Ok(stays),
                Some(Report::Failed(failure)) => return Err(explain(&failure)),
                None => return Err(failed(io::Error::other(self.last_words()))),
            }
        }
    }
}

impl Started {
    /// What it said before it ended.
    fn last_words(&self) -> String {
        let said = self.log.as_deref().and_then(|log| last_line(log).ok()).filter(|line| !line.is_empty());
        said.map_or_else(|| "it ended without a word".to_owned(), |line| format!("it ended, saying: {line}"))
    }
}

fn last_line(log: &Path) -> io::Result<String> {
    let mut file = File::open(log)?;
    let length = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(length.saturating_sub(LAST_LINE_MAX)))?;
    let mut end = Vec::new();
    file.take(LAST_LINE_MAX).read_to_end(&mut end)?;
    Ok(String::from_utf8_lossy(&end).lines().next_back().unwrap_or_default().trim().to_owned())
}

/// A socket for a guest's channel, bound here so that it is there before the guest is.
///
/// # Errors
/// When it cannot be bound.
pub(crate) fn listen(socket: &Path) -> Result<UnixListener, BackendError> {
    let failed =
        |error: io::Error| BackendError::failed(format!("cannot listen on {}: {error}", socket.display()));
    match fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    UnixListener::bind(socket).map_err(failed)
}

/// The descriptors that go with a guest's specification.
pub(crate) fn descriptors(listener: &UnixListener) -> [BorrowedFd<'_>; 1] {
    [listener.as_fd()]
}

/// Setup failures that a user can do something about.
fn explain(failure: &SetupFailure) -> BackendError {
    let error = BackendError::failed(format!("the bottle could not be set up: {failure}"));
    if failure.step == LAY_OVER {
        let fix = "use another disk for $BOTTLE_HOME, or another backend";
        return BackendError { kind: crate::backend::BackendErrorKind::Unsupported, ..error }.with_hint(fix);
    }
    match crate::backend::linux::check::fix_for(failure) {
        Some(fix) => {
            BackendError { kind: crate::backend::BackendErrorKind::Unavailable, ..error }.with_hint(fix)
        }
        None => error,
    }
}

fn log_of(state: &Path, role: Role) -> PathBuf {
    state.join("logs").join(format!("{}.log", role.flag().trim_start_matches('_')))
}

fn open_log(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    if fs::metadata(path).is_ok_and(|log| log.len() > LOG_MAX) {
        fs::rename(path, path.with_extension("log.old"))?;
    }
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}
