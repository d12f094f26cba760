//! Tests whether pid 1 of a bottle starts with a container runtime, and cannot reach addresses outside the container.
//! Caches the result.
//!
//! An engine can list runtimes whose program is missing (Podman lists every runtime that it knows), or that do not work
//! with this kernel. The file `$BOTTLE_HOME/cache/runtime.json` contains the result, and everything on which the result
//! depends. The file only saves time: without it, the next start tries the runtime again.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::models::SystemInfo;
use bottle_backend::{ImageInfo, Resource, RoleInputs};
use bottle_channel::{Channel, Side, rejoin};
use bottle_host::causes;
use bottle_host::files;
use bottle_plan::Resources;
use bottle_policy::names::Slug;
use bottle_protocol::session::guest::{Attempt, GuestEvent, GuestRequest, Probe, Reach};
use bottle_protocol::session::{Hello, Role};
use bottle_text::terminal::inert;
use serde::{Deserialize, Serialize};

use super::agent::Agent;
use super::attach::attach;
use super::container::{create, start};
use super::engine::Engine;
use super::inventory::{self, READER};
use super::limits::Enforced;
use super::live::WorkspaceFiles;
use super::names::{Names, Part};

/// The time limit of a trial. A runtime that takes longer is treated as not working.
const TRIED_WITHIN: Duration = Duration::from_secs(30);

/// The maximum number of bytes that are read from the cache file. A longer file is ignored.
const FILE_MAX: u64 = 64 << 10;

/// The result of a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Verdict {
    /// The engine, the runtime and the versions that were tried.
    tried: String,
    /// Why pid 1 did not start. `None` if pid 1 started.
    pub(super) failure: Option<String>,
}

/// Returns a text that identifies everything on which a trial of this runtime depends.
pub(super) fn subject(runtime: &str, info: &SystemInfo) -> String {
    let configured = info.runtimes.as_ref().and_then(|runtimes| runtimes.get(runtime));
    let parts = (
        &info.id,
        runtime,
        configured.map(|runtime| (&runtime.path, &runtime.runtime_args)),
        &info.server_version,
        &info.kernel_version,
        env!("CARGO_PKG_VERSION"),
    );
    serde_json::to_string(&parts).unwrap_or_default()
}

/// Returns the result of an earlier trial of this subject.
pub(super) fn earlier(home: &Path, subject: &str) -> Option<Verdict> {
    let mut text = Vec::new();
    File::open(path(home)).ok()?.take(FILE_MAX).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok().filter(|verdict: &Verdict| verdict.tried == subject)
}

/// Starts pid 1 with this runtime, without a network, and caches the result.
pub(super) async fn run(
    engine: &Engine,
    names: &Names,
    home: &Path,
    runtime: &str,
    subject: String,
    (image, roles): (&ImageInfo, &RoleInputs),
) -> Verdict {
    let tried = tokio::time::timeout(
        TRIED_WITHIN,
        start_guest(engine, names, runtime, image, roles, &home.join("state")),
    )
    .await;
    let failure = tried.unwrap_or_else(|_| Err("it did not start in time".to_owned())).err();
    let verdict = Verdict { tried: subject, failure: failure.map(|why| inert(&why)) };
    let path = path(home);
    let written = path
        .parent()
        .map_or(Ok(()), files::create_private_directory)
        .and_then(|()| files::replace(&path, |file| Ok(serde_json::to_writer(file, &verdict)?)));
    if let Err(error) = written {
        tracing::debug!("{}: {error}", path.display());
    }
    verdict
}

async fn start_guest(
    engine: &Engine,
    names: &Names,
    runtime: &str,
    image: &ImageInfo,
    roles: &RoleInputs,
    state: &Path,
) -> Result<(), String> {
    // The container has the name and the part of a reader of kept files, so a cleanup finds the container.
    let slug: Slug = format!("trial-{:08x}", rand::random::<u32>()).parse().map_err(line)?;
    let info = engine.info().await.map_err(line)?;
    let agent = Agent {
        names,
        slug: &slug,
        part: Part::Reader,
        image: &image.image,
        user: (image.uid, image.gid),
        program: &roles.program,
        transport: None,
        workspace: WorkspaceFiles::Own,
        objects: None,
        read_only: true,
        limits: &Resources::default(),
        enforced: Enforced::of(info),
        on_podman: engine.podman_socket().is_some(),
        runtime: Some(runtime),
        api: engine.pong.api,
    };
    let container = create(engine, &names.name(Part::Reader, &slug), agent.body()).await;
    let container = container.map_err(line)?;
    let started = async {
        let attached = attach(engine, &container, None).await.map_err(line)?;
        start(engine, &container).await.map_err(line)?;
        let stream = rejoin(attached).await.map_err(line)?;
        let (channel, _, _) =
            Channel::establish(stream, Side::Dialed, Hello::of(Role::Keeper)).await.map_err(line)?;
        probe(&channel).await
    };
    let started = started.await;
    let reader = Resource::new(&slug, READER, container);
    if let Err(error) = inventory::remove(engine, names, state, &[reader]).await {
        // If this removal fails, a cleanup removes the container.
        tracing::warn!("the container of a trial is left: {}", error.one_line());
    }
    started
}

/// Probes addresses outside the container from inside the container. The container has no network, so each attempt must
/// fail at once. Otherwise the start of a bottle could not prove the bottle's isolation.
async fn probe(guest: &Channel) -> Result<(), String> {
    let outside = Probe { host: Vec::new(), others: Vec::new(), isolation_only: true };
    let mut stream = guest.open(&GuestRequest::Probe(outside)).await.map_err(line)?;
    match stream.receive().await.map_err(line)? {
        GuestEvent::Probed { attempts } => unproven(&attempts).map_or(Ok(()), Err),
        _ => Err("pid 1 sent an unexpected answer".to_owned()),
    }
}

/// Describes the first attempt that reached an address or is not known to be blocked. Ignores attempts that need the
/// proxy, because the container has no proxy.
fn unproven(attempts: &[Attempt]) -> Option<String> {
    let mut addresses =
        attempts.iter().filter(|attempt| attempt.via.starts_with("tcp ") || attempt.via.starts_with("udp "));
    let open = addresses.find(|attempt| attempt.result != Reach::Blocked)?;
    Some(format!("its isolation cannot be proven: {} by {} ({})", open.target, open.via, open.seen))
}

fn line(error: impl std::error::Error + 'static) -> String {
    causes::one_line(&error)
}

fn path(home: &Path) -> PathBuf {
    home.join("cache/runtime.json")
}

#[cfg(test)]
mod tests {
    use bollard::models::Runtime;

    use super::*;

    #[test]
    fn a_result_applies_only_to_what_was_tried() {
        let home = tempfile::tempdir().expect("home");
        let info = |kernel: &str| SystemInfo {
            id: Some("engine".to_owned()),
            kernel_version: Some(kernel.to_owned()),
            runtimes: Some([("runsc".to_owned(), Runtime::default())].into()),
            ..SystemInfo::default()
        };
        let tried = subject("runsc", &info("6.1"));
        assert_eq!(earlier(home.path(), &tried), None);
        let verdict = Verdict { tried: tried.clone(), failure: None };
        std::fs::create_dir(home.path().join("cache")).expect("directory");
        std::fs::write(path(home.path()), serde_json::to_vec(&verdict).expect("JSON")).expect("written");
        assert_eq!(earlier(home.path(), &tried), Some(verdict));
        assert_eq!(earlier(home.path(), &subject("runsc", &info("6.2"))), None, "another kernel");
        assert_eq!(earlier(home.path(), &subject("kata", &info("6.1"))), None, "another runtime");
        std::fs::write(path(home.path()), "{").expect("written");
        assert_eq!(earlier(home.path(), &tried), None);
    }
}
