//! Injects failures into the fake backend. `BOTTLE_FAKE_FAIL=<step>` makes a step fail, `<step>:kill` kills the process
//! at that step, `<step>:hang` makes the step hang, and `<step>:wait` makes the step wait until the file [`CONTINUE`]
//! exists in `$BOTTLE_HOME`. No other backend reads `BOTTLE_FAKE_FAIL`.

use std::future::pending;
use std::path::PathBuf;
use std::time::Duration;

use bottle_backend::{BackendError, ProgressSink};
use bottle_host::Host;

/// The environment variable that requests a failure.
const VARIABLE: &str = "BOTTLE_FAKE_FAIL";

/// The file in `$BOTTLE_HOME` that a step with the suffix `:wait` waits for.
const CONTINUE: &str = "fake-continue";

/// The interval between two checks whether [`CONTINUE`] exists.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The points where a failure can be injected: the beginning of a method of the backend traits, or a point inside the
/// method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// At the beginning of `check`.
    Check,
    /// At the beginning of `prepare`.
    Prepare,
    /// At the beginning of `make_network`.
    MakeNetwork,
    /// At the beginning of `start_bundle`.
    StartBundle,
    /// At the beginning of `start_guest`.
    StartGuest,
    /// At the beginning of `open_kept`.
    OpenKept,
    /// At the beginning of `connect_bundle`.
    ConnectBundle,
    /// At the beginning of `connect_guest`.
    ConnectGuest,
    /// At the beginning of `remove`.
    Remove,
    /// At the beginning of `make_snapshot`.
    MakeSnapshot,
    /// In `make_snapshot`, after the first file was copied.
    SnapshotCopying,
    /// In `make_snapshot`, after the snapshot is complete and before the snapshot is recorded.
    SnapshotMade,
    /// In `start_guest`, after the first file of a snapshot was restored.
    Restoring,
    /// At the beginning of `snapshots`.
    Snapshots,
    /// At the beginning of `remove_snapshot`.
    RemoveSnapshot,
    /// At the beginning of `export`.
    Export,
    /// At the beginning of `import`.
    Import,
    /// In `import`, after the snapshot is complete and before the snapshot is recorded.
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

    /// Whether the environment requests that `step` waits.
    pub(super) fn waits_at(&self, step: Step) -> bool {
        self.asked == Some(Ok((step, How::Wait)))
    }

    /// If the environment requests a failure at `step`, fails, hangs, waits or kills the process.
    ///
    /// # Errors
    /// The requested failure, or an error when the variable's value names no step.
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

    /// Returns a progress sink that injects a failure while files are copied. During a copy, only `<step>:kill` has an
    /// effect. The sink kills the process from the thread that copies.
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
