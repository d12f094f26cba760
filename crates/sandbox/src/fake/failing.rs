//! Injects failures into the fake backend. `BOTTLE_FAKE_FAIL=<step>` makes a step fail, `<step>:kill` kills the process
//! at that step, `<step>:hang` makes the step hang, and `<step>:wait` makes it wait until the home has a file
//! [`CONTINUE`]. No other backend reads the variable.

use std::future::pending;
use std::path::PathBuf;
use std::time::Duration;

use bottle_backend::{BackendError, ProgressSink};
use bottle_host::Host;

/// The environment variable that requests a failure.
const VARIABLE: &str = "BOTTLE_FAKE_FAIL";

/// The file in the home for which a waiting step waits.
const CONTINUE: &str = "fake-continue";

/// The interval between two searches for that file.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The points at which a failure can be injected: at the beginning of a trait method, or at a point inside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// `check`
    Check,
    /// `prepare`
    Prepare,
    /// `make_network`
    MakeNetwork,
    /// `start_bundle`
    StartBundle,
    /// `start_guest`
    StartGuest,
    /// `open_kept`
    OpenKept,
    /// `connect_bundle`
    ConnectBundle,
    /// `connect_guest`
    ConnectGuest,
    /// `remove`
    Remove,
    /// `make_snapshot`
    MakeSnapshot,
    /// `make_snapshot`, after it copied its first file
    SnapshotCopying,
    /// `make_snapshot`, after the snapshot is complete and before it is recorded
    SnapshotMade,
    /// `start_guest`, after it restored the first file of a snapshot
    Restoring,
    /// `snapshots`
    Snapshots,
    /// `remove_snapshot`
    RemoveSnapshot,
    /// `export`
    Export,
    /// `import`
    Import,
    /// `import`, after the snapshot is complete and before it is recorded
    Importing,
}

impl Step {
    const ALL: [(&'static str, Self); 18] = [
        ("check", Self::Check),
        ("prepare", Self::Prepare),
        ("make_network", Self::MakeNetwork),
        ("start_bundle", Self::StartBundle),
        ("start_guest", Self::StartGuest),
        ("open_kept", Self::OpenKept),
        ("connect_bundle", Self::ConnectBundle),
        ("connect_guest", Self::ConnectGuest),
        ("remove", Self::Remove),
        ("make_snapshot", Self::MakeSnapshot),
        ("snapshot_copying", Self::SnapshotCopying),
        ("snapshot_made", Self::SnapshotMade),
        ("restoring", Self::Restoring),
        ("snapshots", Self::Snapshots),
        ("remove_snapshot", Self::RemoveSnapshot),
        ("export", Self::Export),
        ("import", Self::Import),
        ("importing", Self::Importing),
    ];
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Fail,
    Kill,
    Hang,
    Wait,
}

/// The failure that the environment requests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Failing {
    asked: Option<Result<(Step, How), String>>,
    home: PathBuf,
}

impl Failing {
    pub(super) fn from_environment(host: &Host) -> Self {
        let asked = host.var(VARIABLE).map(|asked| parse(asked).ok_or_else(|| asked.to_owned()));
        Self { asked, home: host.home.clone() }
    }

    /// Whether this step waits.
    pub(super) fn waits_at(&self, step: Step) -> bool {
        self.asked == Some(Ok((step, How::Wait)))
    }

    /// If this is the requested step, fails, hangs, or kills the process.
    ///
    /// # Errors
    /// The requested failure, or an error when the variable names no step.
    pub(super) async fn at(&self, step: Step) -> Result<(), BackendError> {
        let how = match &self.asked {
            None => return Ok(()),
            Some(Ok((asked, how))) if *asked == step => *how,
            Some(Ok(_)) => return Ok(()),
            Some(Err(unknown)) => {
                let names = Step::ALL.map(|(name, _)| name).join(", ");
                return Err(BackendError::failed(format!("{VARIABLE} names no step: {unknown:?}"))
                    .with_hint(format!("use one of {names}, with :kill, :hang, :wait or nothing behind")));
            }
        };
        match how {
            How::Fail => {
                let name =
                    Step::ALL.iter().find(|(_, known)| *known == step).map_or("the step", |(name, _)| name);
                return Err(BackendError::failed(format!("{name} fails, as {VARIABLE} asks for")));
            }
            How::Hang => {}
            How::Wait => {
                while !self.home.join(CONTINUE).exists() {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
                return Ok(());
            }
            How::Kill => kill_itself()?,
        }
        pending().await
    }

    /// Injects a failure inside a copy. Only a kill is possible there, and it happens on the copying thread.
    pub(super) fn while_copying(&self, step: Step, progress: ProgressSink) -> ProgressSink {
        match &self.asked {
            Some(Ok((asked, How::Kill))) if *asked == step => ProgressSink::new(|_| drop(kill_itself())),
            _ => progress,
        }
    }
}

/// Kills this process without unwinding, as a crash or the OOM killer would.
fn kill_itself() -> Result<(), BackendError> {
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
        .map_err(|error| BackendError::failed("cannot kill itself").because(error))
}

fn parse(asked: &str) -> Option<(Step, How)> {
    let (step, how) = asked.split_once(':').unwrap_or((asked, "fail"));
    let (_, step) = Step::ALL.into_iter().find(|(name, _)| *name == step)?;
    let how = match how {
        "fail" => How::Fail,
        "kill" => How::Kill,
        "hang" => How::Hang,
        "wait" => How::Wait,
        _ => return None,
    };
    Some((step, how))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn fails_at_the_named_step_and_reports_an_unknown_step() {
        assert_eq!(parse("start_guest:kill"), Some((Step::StartGuest, How::Kill)));
        assert_eq!(parse("remove"), Some((Step::Remove, How::Fail)));
        assert_eq!(parse("remove:later"), None);

        let failing = Failing { asked: Some(Ok((Step::Prepare, How::Fail))), ..Failing::default() };
        assert!(failing.at(Step::Check).await.is_ok());
        assert!(failing.at(Step::Prepare).await.is_err());
        let wrong = Failing { asked: Some(Err("prepared".to_owned())), ..Failing::default() };
        assert!(wrong.at(Step::Check).await.expect_err("no step").message.contains("prepared"));
        assert!(Failing::default().at(Step::Prepare).await.is_ok());
    }
}
