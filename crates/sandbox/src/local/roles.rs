//! Starts the process that becomes pid 1, or the process of the bundle, and follows the setup of the process.
//!
//! The process runs this program with its label as arguments and an empty environment. It receives its specification on
//! standard input ([`super::spawn_ipc`]). Until its channel is open, the process writes errors to a log file of limited
//! size. Until it has received the specification, the process exits when the process that started it exits. Afterwards,
//! the two processes are independent.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bottle_backend::{BackendError, Resource, ResourceLog};
use bottle_host::files;
use bottle_host::process::ProcessId;
use bottle_policy::names::Slug;
use serde::Serialize;
use tokio::process::{Child, Command};

use super::Scope;
use super::labels::{self, Role};
use super::spawn_ipc::{Report, SetupFailure, Starter};

/// The size limit of a log in bytes. A process that opens a larger log rotates it. One rotated log is kept.
const MAX_LOG: u64 = 1 << 20;

/// The number of bytes read from the end of a log to find its last line.
const LAST_LINE_MAX: u64 = 4096;

/// How long a killed process may take to exit. The process has no children yet that could delay its exit. If the
/// process has not exited after this time, a later cleanup finds it by its label.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// A process that was started in advance and waits for its specification.
#[derive(Debug)]
struct PrespawnedProcess {
    role: Role,
    slug: Slug,
    child: Child,
    ours: UnixStream,
    log: Option<PathBuf>,
}

/// Processes that were started in advance. The early start saves time, because the program loads while the
/// specification is prepared. Loading and preparing take about equally long.
#[derive(Debug, Clone, Default)]
pub(crate) struct Prespawned(Arc<Mutex<Vec<PrespawnedProcess>>>);

impl Prespawned {
    fn lock(&self) -> MutexGuard<'_, Vec<PrespawnedProcess>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, role: Role, slug: &Slug) -> Option<PrespawnedProcess> {
        let mut process = self.lock();
        let at = process.iter().position(|process| process.role == role && process.slug == *slug)?;
        Some(process.swap_remove(at))
    }

    /// Kills the processes of the bottle that were started in advance and never received a specification.
    pub(crate) async fn end(&self, slug: &Slug) {
        for role in [Role::Bundle, Role::Guest] {
            if let Some(mut process) = self.take(role, slug) {
                // The process may already have exited.
                let _ = process.child.kill().await;
            }
        }
    }
}

/// Starts a bottle's processes before [`start`] sends their specifications. A process that receives no specification
/// exits when the bottle ends or when this process exits. Cleanup finds such a process by its label, like any other
/// process.
///
/// # Errors
/// The errors of [`start`].
pub(crate) fn prespawn(scope: &Scope, slug: &Slug, state: &Path) -> Result<(), BackendError> {
    for role in scope.prespawned_roles.iter().copied() {
        let process = spawn(scope, role, slug, Some(state))?;
        scope.prespawned.lock().push(process);
    }
    Ok(())
}

/// A process that received its specification and performs its setup.
pub(crate) struct Started {
    scope: Scope,
    role: Role,
    slug: Slug,
    child: Child,
    starter: Starter,
    log: Option<PathBuf>,
}

/// Starts the process of a role, and sends it its specification and file descriptors. If `state` is set, the process
/// writes its output to a log in this state directory.
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
    let failed = |error: io::Error| {
        BackendError::failed(format!("cannot start {}", role.description())).because(error)
    };
    // Without `state`, the process belongs to no bottle, so no process was started in advance.
    let process = match state.and_then(|_| scope.prespawned.take(role, slug)) {
        Some(process) => process,
        None => spawn(scope, role, slug, state)?,
    };
    let PrespawnedProcess { role, slug, child, ours, log } = process;
    let starter = Starter::send(ours, spec, fds).map_err(failed)?;
    Ok(Started { scope: scope.clone(), role, slug, child, starter, log })
}

fn spawn(
    scope: &Scope,
    role: Role,
    slug: &Slug,
    state: Option<&Path>,
) -> Result<PrespawnedProcess, BackendError> {
    let failed = |error: io::Error| {
        BackendError::failed(format!("cannot start {}", role.description())).because(error)
    };
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
    Ok(PrespawnedProcess { role, slug: slug.clone(), child, ours, log })
}

/// The part of a process's setup that the backend does outside of the process.
pub(crate) trait Setup: Send + Sync {
    /// Maps the ids of the new user namespace of process `pid`.
    ///
    /// # Errors
    /// When the ids cannot be mapped.
    fn map_ids(&self, pid: u32) -> io::Result<()>;

    /// If a fix for the failure is known, adds an error kind and a hint to the error.
    fn explain(&self, failure: &SetupFailure, error: BackendError) -> BackendError;
}

/// The setup of a process that stays in the namespaces of the process that started it.
pub(crate) struct PlainSetup;

impl Setup for PlainSetup {
    fn map_ids(&self, _: u32) -> io::Result<()> {
        Err(io::Error::other("this process has no ids to map"))
    }

    fn explain(&self, _: &SetupFailure, error: BackendError) -> BackendError {
        error
    }
}

impl Started {
    /// Follows the setup until the process is ready. The final process, for example pid 1 of a sandbox, may be a
    /// descendant of the started process. Records the final process as soon as its id is known. Returns `None` if the
    /// final process has already exited.
    ///
    /// # Errors
    /// [`BackendError`] with the cause when the setup failed. In this case, the process has ended.
    pub(crate) async fn wait_until_ready(
        mut self,
        setup: &dyn Setup,
        resources: &dyn ResourceLog,
    ) -> Result<Option<ProcessId>, BackendError> {
        let result = self.follow_setup(setup, resources).await;
        if result.is_err() {
            self.end().await;
        }
        // The spawned task reaps the child when the child exits. A bundle runs as long as its bottle, so this function
        // does not wait.
        tokio::spawn(async move { self.child.wait().await });
        result
    }

    /// Kills the process and its descendants. The resource log may not contain these processes yet.
    async fn end(&mut self) {
        // An error is ignored, because it would hide the failure of the setup. The code below finds the remaining
        // processes by their labels.
        let _ = self.child.kill().await;
        let (scope, role, slug) = (self.scope.clone(), self.role, self.slug.clone());
        let rest = move || {
            let found = labels::find_of(&scope, &slug).unwrap_or_default();
            for labelled in found.into_iter().filter(|found| found.role == role) {
                let _ = labelled.process.kill(KILL_TIMEOUT);
            }
        };
        let _ = tokio::task::spawn_blocking(rest).await;
        self.scope.prespawned.end(&self.slug).await;
    }

    async fn follow_setup(
        &mut self,
        setup: &dyn Setup,
        resources: &dyn ResourceLog,
    ) -> Result<Option<ProcessId>, BackendError> {
        let what = self.role.description();
        let failed = |error: io::Error| BackendError::failed(format!("cannot set up {what}")).because(error);
        let mut final_process = None;
        loop {
            match self.starter.next_report().await.map_err(failed)? {
                Some(Report::AwaitsIds) => {
                    let pid = self.child.id().ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
                    setup.map_ids(pid).map_err(failed)?;
                    self.starter.proceed().await.map_err(failed)?;
                }
                Some(Report::Started { pid }) => {
                    if let Some(process) = ProcessId::of(pid).map_err(failed)? {
                        resources.record(Resource::new(&self.slug, self.role.kind(), process.to_string()))?;
                        final_process = Some(process);
                    }
                }
                Some(Report::Ready) => return Ok(final_process),
                Some(Report::Failed(failure)) => {
                    let error = BackendError::failed("cannot set up the bottle").because(failure.clone());
                    return Err(setup.explain(&failure, error));
                }
                None => return Err(failed(io::Error::other(self.exit_cause()))),
            }
        }
    }
}

impl Started {
    /// Describes why the process exited, with the last line of its log.
    fn exit_cause(&self) -> String {
        let line = self.log.as_deref().and_then(|log| last_line(log).ok()).filter(|line| !line.is_empty());
        line.map_or_else(
            || "the process exited without an error message".to_owned(),
            |line| format!("the process exited: {line}"),
        )
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

/// Binds the socket of a guest's channel before the guest starts.
///
/// # Errors
/// When the socket cannot be bound.
pub(crate) fn listen(socket: &Path) -> Result<UnixListener, BackendError> {
    let failed = |error: io::Error| {
        BackendError::failed(format!("cannot listen on {}", socket.display())).because(error)
    };
    match fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    files::bind_private(socket).map_err(failed)
}

/// The descriptors that are sent with a guest's specification.
pub(crate) fn socket_fds(listener: &UnixListener) -> [BorrowedFd<'_>; 1] {
    [listener.as_fd()]
}

fn log_of(state: &Path, role: Role) -> PathBuf {
    state.join("logs").join(format!("{}.log", role.flag().trim_start_matches('_')))
}

fn open_log(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    if fs::metadata(path).is_ok_and(|log| log.len() > MAX_LOG) {
        fs::rename(path, path.with_extension("log.old"))?;
    }
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}
