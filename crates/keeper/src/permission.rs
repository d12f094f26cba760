//! Decides which requests of clients a keeper carries out. This module is pure.

use bottle_backend::Access;
use bottle_protocol::session::guest::GuestRequest;

use super::protocol::KeeperRequest;

/// The kind of a keeper, by what it serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keeper {
    /// The keeper serves a running bottle.
    Running,
    /// The keeper serves the files of a kept bottle, which it opened with this access.
    Opened(Access),
}

impl Keeper {
    /// Returns the reason why the keeper refuses a request. Returns `None` if the keeper carries the request out.
    pub(super) fn refusal(self, request: &KeeperRequest) -> Option<&'static str> {
        match (self, request) {
            (
                Self::Running,
                KeeperRequest::Launch(_) | KeeperRequest::Adopt { .. } | KeeperRequest::Open { .. },
            ) => Some("this keeper has a bottle already"),
            (Self::Running, KeeperRequest::Guest(inner)) if Right::to(inner) == Right::Keeper => {
                Some("only the keeper may send this request")
            }
            (Self::Running, _) => None,
            (Self::Opened(opened), KeeperRequest::Guest(inner)) if Right::to(inner).is_within(opened) => None,
            (Self::Opened(_), KeeperRequest::Open { .. } | KeeperRequest::Pulled { .. }) => None,
            (Self::Opened(_), _) => Some("the bottle ended; only its files can be used"),
        }
    }
}

/// The condition under which a client may send a request to the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Right {
    /// Only the keeper itself may send the request.
    Keeper,
    /// The bottle must run.
    Running,
    /// The bottle must run, or its files must be open with at least this access.
    Files(Access),
}

impl Right {
    fn to(request: &GuestRequest) -> Self {
        match request {
            GuestRequest::Provision(_)
            | GuestRequest::StartAgent(_)
            | GuestRequest::Pause
            | GuestRequest::Continue
            | GuestRequest::Stop(_)
            | GuestRequest::EndProcesses { .. } => Self::Keeper,
            GuestRequest::Attach(_)
            | GuestRequest::StartProcess(_)
            | GuestRequest::ListProcesses
            | GuestRequest::WatchProcesses
            | GuestRequest::ReadOutput(_)
            | GuestRequest::WriteInput(_)
            | GuestRequest::SignalProcess(_)
            | GuestRequest::ResizeTerminal(_)
            | GuestRequest::EndProcess(_)
            | GuestRequest::WaitForProcesses { .. }
            | GuestRequest::StartService(_)
            | GuestRequest::StartServiceAgain { .. }
            | GuestRequest::ListServices
            | GuestRequest::StopService(_)
            | GuestRequest::WatchServices
            | GuestRequest::Logs(_)
            | GuestRequest::Probe(_) => Self::Running,
            // `Exec` needs only read access: the program can write only if the files were opened for writing.
            GuestRequest::Exec(_)
            | GuestRequest::CopyOut(_)
            | GuestRequest::Changed(_)
            | GuestRequest::Status
            | GuestRequest::Moment
            | GuestRequest::Now => Self::Files(Access::Read),
            GuestRequest::CopyIn(_) => Self::Files(Access::Write),
            GuestRequest::Files(request) if request.writes() => Self::Files(Access::Write),
            GuestRequest::Files(_) => Self::Files(Access::Read),
        }
    }

    /// Whether files that were opened with the access `opened` are sufficient for the request.
    fn is_within(self, opened: Access) -> bool {
        matches!(self, Self::Files(needed) if needed <= opened)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const ONLY_KEEPER: &str = "only the keeper may send this request";
    const ONLY_FILES: &str = "the bottle ended; only its files can be used";

    /// Each entry: a request, and whether it is carried out by a running bottle, by files opened for reading, and by
    /// files opened for writing.
    fn table() -> Vec<(Value, [bool; 3])> {
        let (keeper, running) = ([false; 3], [true, false, false]);
        let (reads, writes) = ([true; 3], [true, false, true]);
        vec![
            (json!({"request": "provision", "env": {}, "files": []}), keeper),
            (json!({"request": "start-agent", "argv": ["true"]}), keeper),
            (json!({"request": "pause"}), keeper),
            (json!({"request": "continue"}), keeper),
            (json!({"request": "stop", "grace_ms": 0}), keeper),
            (json!({"request": "end-processes", "grace_ms": 0}), keeper),
            (json!({"request": "attach", "read_only": true}), running),
            (json!({"request": "start-process", "process": {"argv": ["true"]}}), running),
            (json!({"request": "list-processes"}), running),
            (json!({"request": "watch-processes"}), running),
            (json!({"request": "write-input", "process": "p1"}), running),
            (json!({"request": "signal-process", "process": "p1", "signal": 9}), running),
            (
                json!({"request": "resize-terminal", "process": "p1", "size": {"columns": 9, "rows": 9}}),
                running,
            ),
            (json!({"request": "end-process", "process": "p1", "grace_ms": 0}), running),
            (json!({"request": "wait-for-processes", "processes": ["p1"]}), running),
            (json!({"request": "start-service-again", "service": "db"}), running),
            (json!({"request": "list-services"}), running),
            (json!({"request": "stop-service", "name": "db", "grace_ms": 0}), running),
            (json!({"request": "watch-services"}), running),
            (json!({"request": "logs"}), running),
            (json!({"request": "probe", "host": []}), running),
            (json!({"request": "exec", "argv": ["true"]}), reads),
            (json!({"request": "copy-out", "path": "/workspace"}), reads),
            (json!({"request": "changed", "since": "2026-01-01T00:00:00Z"}), reads),
            (json!({"request": "status"}), reads),
            (json!({"request": "moment"}), reads),
            (json!({"request": "now"}), reads),
            (json!({"request": "files", "operation": "stat", "path": "a"}), reads),
            (json!({"request": "files", "operation": "patch", "check": false}), writes),
            (json!({"request": "copy-in", "path": "/workspace"}), writes),
        ]
    }

    #[test]
    fn requests_for_the_guest_need_a_right() {
        for (request, allowed) in table() {
            let request: GuestRequest = serde_json::from_value(request).expect("a request");
            let request = KeeperRequest::Guest(request);
            let keepers = [Keeper::Running, Keeper::Opened(Access::Read), Keeper::Opened(Access::Write)];
            for (keeper, allowed) in keepers.into_iter().zip(allowed) {
                let refusal = if keeper == Keeper::Running { ONLY_KEEPER } else { ONLY_FILES };
                let wanted = (!allowed).then_some(refusal);
                assert_eq!(keeper.refusal(&request), wanted, "{keeper:?} {request:?}");
            }
        }
    }

    #[test]
    fn a_keeper_has_one_bottle() {
        let of = |request: Value| serde_json::from_value::<KeeperRequest>(request).expect("a request");
        let (running, files) = (Some("this keeper has a bottle already"), Some(ONLY_FILES));
        let inherited = json!({"tokens": [], "secrets": []});
        for (request, wanted) in [
            (json!({"request": "adopt", "body": {"slug": "one", "inherited": inherited}}), [running, files]),
            (json!({"request": "open", "body": {"slug": "one", "access": "read"}}), [running, None]),
            (json!({"request": "pulled", "body": {"at": "2026-01-01T00:00:00Z"}}), [None, None]),
            (json!({"request": "notices"}), [None, files]),
            (json!({"request": "watch"}), [None, files]),
            (json!({"request": "find-delay"}), [None, files]),
            (json!({"request": "activity"}), [None, files]),
            (json!({"request": "stop", "body": {"grace_ms": 0}}), [None, files]),
            (json!({"request": "commit"}), [None, files]),
            (json!({"request": "remove-snapshot"}), [None, files]),
            (json!({"request": "remove-one-snapshot", "body": {"name": null}}), [None, files]),
            (json!({"request": "offer"}), [None, files]),
            (json!({"request": "budget", "body": {"order": "continue", "by": "me"}}), [None, files]),
            (
                json!({"request": "replace-secrets", "body": {"values": {"a": "b"}, "by": "me"}}),
                [None, files],
            ),
            (json!({"request": "detach"}), [None, files]),
        ] {
            let request = of(request);
            let found =
                [Keeper::Running, Keeper::Opened(Access::Write)].map(|keeper| keeper.refusal(&request));
            assert_eq!(found, wanted, "{request:?}");
        }
    }
}
