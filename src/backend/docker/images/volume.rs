//! The program for pid 1 of every bottle, in a volume that is filled once per version and only read after.
//!
//! ```text
//! bottle-program-<hash>-<random>   holds the program; filled through a container that never starts
//! bottle-program-<hash>            made when the first is full: an empty one whose label names it
//! ```
//! The engine makes a volume's name unique and its labels final, so the second is at once the mark that
//! filling is over and what decides between two starts that fill at the same time.

use std::collections::HashMap;
use std::time::Duration;

use bollard::Docker;
use bollard::models::{Mount, MountType, Volume, VolumeCreateRequest};
use bollard::query_parameters::{
    ListVolumesOptionsBuilder, RemoveVolumeOptions, UploadToContainerOptionsBuilder,
};
use bytes::Bytes;
use jiff::Timestamp;
use rand::RngExt as _;

use super::program::Program;
use super::scratch_container::ScratchContainer;
use super::unused::{VOLUME, remove_one};
use super::{failed, is_missing, owner_label, recipe};
use crate::backend::{BackendError, Unused};

/// Which volume is full, on the one that says so.
const FULL_LABEL: &str = "bottle.program";
/// On each of them.
const ROLE_LABEL: &str = "bottle.volume";
/// Where it is filled from.
const MOUNTED: &str = "/program";
/// A volume of another version that no container uses is given up after this long.
const GIVEN_UP: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// An attempt to fill one is over after this long, whoever made it.
const CUT_OFF: Duration = Duration::from_secs(5 * 60);
/// Digits of the program's hash in a name.
const DIGITS: usize = 16;

/// The volume with the program in it as [`super::PROGRAM_FILE`], made when it is not there.
///
/// # Errors
/// [`BackendError`] when the engine refuses; what was made for the attempt is removed.
pub(super) async fn filled(
    docker: &Docker,
    program: &Program,
    maker: Maker<'_>,
) -> Result<String, BackendError> {
    let mark = mark_of(program);
    match docker.inspect_volume(&mark).await {
        Ok(volume) => return full(&volume),
        Err(error) if is_missing(&error) => {}
        Err(error) => return Err(failed("cannot look for the program's volume", error)),
    }
    let attempt: u32 = rand::rng().random();
    let name = format!("{mark}-{attempt:08x}");
    let made = make(docker, program, maker, &mark, &name).await;
    if made.as_ref().is_ok_and(|chosen| *chosen == name) {
        // What others left; that it fails is no failure of a start.
        for volume in unused(docker, Some(program), maker.home).await.unwrap_or_default() {
            let _ = remove_one(docker, &volume).await;
        }
    } else {
        // Lost against another start, or failed.
        let _ = docker.remove_volume(&name, None::<RemoveVolumeOptions>).await;
    }
    made
}

/// What a volume is filled through.
#[derive(Debug, Clone, Copy)]
pub(super) struct Maker<'a> {
    /// Any image; nothing of it runs.
    pub(super) image: &'a str,
    /// See [`ScratchContainer::make`].
    pub(super) home: &'a str,
}

/// The name of the volume that says that this program's is full.
fn mark_of(program: &Program) -> String {
    format!("bottle-program-{}", &program.hash[..DIGITS.min(program.hash.len())])
}

async fn make(
    docker: &Docker,
    program: &Program,
    maker: Maker<'_>,
    mark: &str,
    name: &str,
) -> Result<String, BackendError> {
    let by = owner_label::this_process(maker.home);
    create(docker, name, HashMap::from([(owner_label::LABEL.to_owned(), by)])).await?;
    fill(docker, program, maker, name).await?;
    let mark = create(docker, mark, HashMap::from([(FULL_LABEL.to_owned(), name.to_owned())])).await?;
    full(&mark)
}

/// Makes a volume, or answers with the one that has the name already.
async fn create(
    docker: &Docker,
    name: &str,
    mut labels: HashMap<String, String>,
) -> Result<Volume, BackendError> {
    labels.insert(ROLE_LABEL.to_owned(), "program".to_owned());
    let request = VolumeCreateRequest {
        name: Some(name.to_owned()),
        labels: Some(labels),
        ..VolumeCreateRequest::default()
    };
    docker.create_volume(request).await.map_err(|error| failed("cannot make a volume for the program", error))
}

fn full(mark: &Volume) -> Result<String, BackendError> {
    mark.labels.get(FULL_LABEL).cloned().ok_or_else(|| {
        BackendError::failed(format!("the engine has a volume {} that is not bottle's", mark.name))
            .with_hint(format!("`docker volume rm {}` makes room for it", mark.name))
    })
}

async fn fill(docker: &Docker, program: &Program, maker: Maker<'_>, name: &str) -> Result<(), BackendError> {
    let bytes = program.bytes()?;
    let mut archive = tar::Builder::new(Vec::with_capacity(bytes.len() + 4096));
    let packed = recipe::append(&mut archive, super::PROGRAM_FILE, 0o755, &bytes)
        .and_then(|()| archive.into_inner())
        .map_err(|error| BackendError::failed(format!("cannot pack the program: {error}")))?;
    let mount = Mount {
        target: Some(MOUNTED.to_owned()),
        source: Some(name.to_owned()),
        typ: Some(MountType::VOLUME),
        ..Mount::default()
    };
    let scratch = ScratchContainer::make(docker, maker.image, maker.home, vec![mount]).await?;
    let options = UploadToContainerOptionsBuilder::new().path(MOUNTED).build();
    let uploaded = docker
        .upload_to_container(&scratch.id, Some(options), bollard::body_full(Bytes::from(packed)))
        .await
        .map_err(|error| failed("cannot fill the program's volume", error));
    uploaded.and(scratch.remove(docker).await)
}

/// Volumes that no container uses: those of programs other than this one after [`GIVEN_UP`], and what a
/// cut-off attempt left, once its process ended, or after [`CUT_OFF`] where that is not known. In the order in
/// which they have to go.
///
/// # Errors
/// [`BackendError`] when the engine cannot be asked.
pub(super) async fn unused(
    docker: &Docker,
    program: Option<&Program>,
    home: &str,
) -> Result<Vec<Unused>, BackendError> {
    let (all, free) = tokio::try_join!(list(docker, false), list(docker, true))?;
    let used = |name: &str| !free.iter().any(|volume| volume.name == name);
    let mark = program.map(mark_of).unwrap_or_default();
    // A mark goes before what it marks: a start that does not find it fills anew.
    let mut names = given_up(&all, &mark, home, Timestamp::now());
    let of_used = |name: &str| {
        let full = all.iter().find(|volume| volume.name == name).and_then(|v| v.labels.get(FULL_LABEL));
        full.is_some_and(|full| all.iter().any(|volume| volume.name == *full) && used(full))
    };
    names.retain(|name| !used(name) && !of_used(name));
    let why = "it holds the program of another version, or a part of one";
    let one = |id| Unused { kind: VOLUME.to_owned(), id, why: why.to_owned(), bytes: None };
    Ok(names.into_iter().map(one).collect())
}

/// Every volume with a program, or those that no container has.
async fn list(docker: &Docker, free: bool) -> Result<Vec<Volume>, BackendError> {
    let mut filters = HashMap::from([("label", vec![ROLE_LABEL.to_owned()])]);
    if free {
        filters.insert("dangling", vec!["true".to_owned()]);
    }
    let options = ListVolumesOptionsBuilder::new().filters(&filters).build();
    let listed = docker.list_volumes(Some(options)).await;
    let listed = listed.map_err(|error| failed("cannot list the program's volumes", error))?;
    Ok(listed.volumes.unwrap_or_default())
}

/// Which volumes to give up, in order. The one of this mark is about to be used, however old it is.
fn given_up(volumes: &[Volume], current: &str, home: &str, now: Timestamp) -> Vec<String> {
    let older = |volume: &Volume, than: Duration| {
        let made = volume.created_at.as_deref().and_then(|text| text.parse::<Timestamp>().ok());
        made.is_some_and(|made| now.duration_since(made).unsigned_abs() > than)
    };
    let (marks, programs): (Vec<_>, Vec<_>) =
        volumes.iter().partition(|volume| volume.labels.contains_key(FULL_LABEL));
    let (old, kept): (Vec<_>, Vec<_>) =
        marks.into_iter().partition(|mark| mark.name != current && older(mark, GIVEN_UP));
    let marked = |program: &Volume| kept.iter().any(|mark| mark.labels[FULL_LABEL] == program.name);
    let cut_off = |program: &Volume| {
        let maker =
            program.labels.get(owner_label::LABEL).and_then(|label| owner_label::is_gone(label, home));
        maker.unwrap_or_else(|| older(program, CUT_OFF))
    };
    let unmarked = programs.into_iter().filter(|program| !marked(program) && cut_off(program));
    old.iter().copied().chain(unmarked).map(|volume| volume.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_versions_and_cut_off_attempts_are_given_up_marks_first() {
        let now: Timestamp = "2026-02-01T00:00:00Z".parse().expect("a time");
        let volume = |name: &str, made: &str, full: Option<&str>| Volume {
            name: name.to_owned(),
            created_at: Some(made.to_owned()),
            labels: full.map(|full| (FULL_LABEL.to_owned(), full.to_owned())).into_iter().collect(),
            ..Volume::default()
        };
        let by = |name: &str, maker: String| Volume {
            labels: [(owner_label::LABEL.to_owned(), maker)].into(),
            ..volume(name, "2026-01-31T23:59:59Z", None)
        };
        let volumes = [
            by("killed", format!("0123abcd/{}:1", std::process::id())),
            by("at-work", owner_label::this_process("0123abcd")),
            by("of-another-home", format!("ffffffff/{}:1", std::process::id())),
            volume("old-1", "2026-01-01T00:00:00Z", None),
            volume("old", "2026-01-01T00:00:01+01:00", Some("old-1")),
            volume("new-1", "2026-01-31T12:00:00Z", None),
            volume("new", "2026-01-31T12:00:01Z", Some("new-1")),
            volume("own-1", "2026-01-01T00:00:00Z", None),
            volume("own", "2026-01-01T00:00:01Z", Some("own-1")),
            volume("cut-off", "2026-01-31T12:00:00Z", None),
            volume("under-way", "2026-01-31T23:59:30Z", None),
            volume("of-unknown-age", "soon", None),
        ];
        let given_up = given_up(&volumes, "own", "0123abcd", now);
        assert_eq!(given_up, ["old", "killed", "old-1", "cut-off"]);
    }
}
