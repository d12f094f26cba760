//! Finds the sockets and pipes in the host paths that a bottle sees. A read-only mount prevents neither `connect` nor
//! `open`, so the agent could communicate with the program that listens on the socket or pipe.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bottle_backend::{BackendError, Exposed};
use bottle_host::directory_walk::{Bounds, Next, walk};
use rustix::fs::FileType;

/// The bounds of the search in one path. A toolchain with its documentation has about 100,000 files, far fewer than
/// this bound.
const BOUNDS: Bounds = Bounds { entries: 2_000_000, time: Duration::from_secs(10) };

/// The maximum number of sockets and pipes that a message names.
const MAX_NAMED: usize = 5;

/// The setting that allows sockets and pipes.
const SETTING: &str = "home_allow_sockets";

/// Finds the sockets and pipes in these paths. Returns one clause of a message for each path that contains sockets or
/// pipes. `is_allowed` is the value of [`SETTING`].
///
/// # Errors
/// [`BackendError`] when [`SETTING`] is off and a path contains sockets or pipes, or is too large to be searched
/// completely.
pub(super) fn check(exposed: &[Exposed], is_allowed: bool) -> Result<Vec<String>, BackendError> {
    let mut found = Vec::new();
    for Exposed { path, .. } in exposed {
        let reached = reachable(path).map_err(|error| {
            BackendError::failed(format!("cannot search {}", path.display())).because(error)
        })?;
        let Some(reached) = reached else { continue };
        if !is_allowed {
            return Err(BackendError::failed(format!(
                "cannot expose {} to the agent: {reached}",
                path.display()
            ))
            .with_hint(format!(
                "list the directories with the programs in `home_allow`; \
                 `{SETTING}: true` in settings.yml allows sockets and pipes"
            )));
        }
        found.push(format!("{}: {reached}", path.display()));
    }
    Ok(found)
}

/// Names the sockets and pipes in a path that the agent could use, as a clause for a message. Returns `None` if there
/// are none.
fn reachable(path: &Path) -> io::Result<Option<String>> {
    let mut named: Vec<PathBuf> = Vec::new();
    let mut count = 0;
    let mut note = |path: &Path| {
        count += 1;
        if named.len() < MAX_NAMED {
            named.push(path.to_owned());
        }
    };
    let kind = FileType::from_raw_mode(rustix::fs::lstat(path)?.st_mode);
    let mut bound = None;
    if is_open(kind) {
        note(path);
    } else if kind == FileType::Directory {
        let walked = walk(path, BOUNDS, &mut |entry| {
            if is_open(entry.kind) {
                note(entry.path);
            }
            Next::Enter
        })?;
        bound = walked.bound.map(|bound| bound.to_string());
        // Directories that this process cannot read are ignored: the agent does not become another user, so it cannot
        // read them either.
        bound = bound.or(walked.too_deep.first().map(|deep| format!("{} is too deep", deep.display())));
    }
    if count == 0 {
        return Ok(bound.map(|bound| format!("it may contain sockets, but {bound}")));
    }
    let names: Vec<String> = named.iter().map(|path| path.display().to_string()).collect();
    let more = if count > named.len() { format!(" and {} more", count - named.len()) } else { String::new() };
    Ok(Some(format!("it could use the sockets and pipes {}{more}", names.join(", "))))
}

fn is_open(kind: FileType) -> bool {
    matches!(kind, FileType::Socket | FileType::Fifo)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn exposed(path: &Path) -> [Exposed; 1] {
        [Exposed { path: path.to_owned(), why: "allowed".to_owned() }]
    }

    #[test]
    fn sockets_and_pipes_are_refused_unless_they_are_allowed() {
        let directory = tempfile::tempdir().expect("directory");
        let top = directory.path();
        fs::create_dir_all(top.join("deep/er")).expect("directory");
        fs::write(top.join("deep/tool"), "x").expect("file");
        assert_eq!(check(&exposed(top), false).expect("only files"), [""; 0]);
        let _listener = UnixListener::bind(top.join("deep/er/agent.sock")).expect("socket");
        let pipe = top.join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
        let refused = check(&exposed(top), false).expect_err("refused").to_string();
        assert!(refused.contains("deep/er/agent.sock, pipe"), "{refused}");
        let found = check(&exposed(top), true).expect("allowed");
        assert!(matches!(&found[..], [one] if one.contains("agent.sock")), "{found:?}");
        // A listed pipe is found. A listed link is not followed.
        check(&exposed(&pipe), false).expect_err("the pipe itself");
        std::os::unix::fs::symlink(top.join("deep/er"), top.join("link")).expect("link");
        assert_eq!(check(&exposed(&top.join("link")), false).expect("a link leads nowhere else"), [""; 0]);
    }
}
