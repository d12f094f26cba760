//! Manages the volume that contains the program of pid 1. For each version of the program, a volume is filled once and
//! is read-only afterwards.
//!
//! ```text
//! bottle-program-<hash>-<random>   contains the program; filled through a scratch container
//! bottle-program-<hash>            the marker, created afterwards: an empty volume whose label names the filled one
//! ```
//! Volume names are unique and labels cannot be changed. The marker therefore shows that the volume is completely
//! filled, and decides which volume is used if two starts fill a volume at the same time.

use std::collections::HashMap;
use std::time::Duration;

use bollard::Docker;
use bollard::models::{Mount, MountType, Volume, VolumeCreateRequest};
use bollard::query_parameters::{
    ListVolumesOptionsBuilder, RemoveVolumeOptions, UploadToContainerOptionsBuilder,
};
use bottle_backend::static_program::Program;
use bottle_backend::{BackendError, Unused};
use bytes::Bytes;
use jiff::Timestamp;
use rand::RngExt as _;

use super::image_error::{failed, is_missing};
use super::scratch_container::ScratchContainer;
use super::unused::{VOLUME, remove_one};
use super::{owner_label, recipe};
use crate::docker::names::foreign_volume;

/// The program's file name in a filled volume.
pub const PROGRAM_FILE: &str = "bottle";
/// The marker's label that contains the name of the filled volume.
const FULL_LABEL: &str = "bottle.program";
/// The label of all volumes that this module creates.
const ROLE_LABEL: &str = "bottle.volume";
/// The mount point in the scratch container.
const MOUNTED: &str = "/program";
/// The age at which an unused volume of another program version is removed.
const EXPIRES_AFTER: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// The age at which an incomplete volume is treated as a leftover, if the process that filled it is unknown.
const INTERRUPTED_AFTER: Duration = Duration::from_secs(5 * 60);
/// The number of digits of the program's hash in a volume name.
const DIGITS: usize = 16;

/// Returns the volume that contains the program as [`PROGRAM_FILE`]. Creates the volume if it does not exist.
///
/// # Errors
/// [`BackendError`] when the engine refuses a call. After an error, the incomplete volume is removed.
pub(super) async fn filled(
    docker: &Docker,
    program: &Program,
    scratch_source: ScratchSource<'_>,
) -> Result<String, BackendError> {
    let mark = mark_of(program);
    match docker.inspect_volume(&mark).await {
        Ok(volume) => return full(&volume),
        Err(error) if is_missing(&error) => {}
        Err(error) => return Err(failed("cannot look for the program's volume", error)),
    }
    let attempt: u32 = rand::rng().random();
    let name = format!("{mark}-{attempt:08x}");
    let made = make(docker, program, scratch_source, &mark, &name).await;
    if made.as_ref().is_ok_and(|chosen| *chosen == name) {
        // Removes leftovers of other starts. This start continues even if the removal fails.
        for volume in unused(docker, Some(program), scratch_source.home).await.unwrap_or_default() {
            let _ = remove_one(docker, &volume).await;
        }
    } else {
        // Another start created the marker first, or filling the volume failed.
        let _ = docker.remove_volume(&name, None::<RemoveVolumeOptions>).await;
    }
    made
}

/// The parameters for creating a scratch container.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScratchSource<'a> {
    /// The id of any image. The programs of the image do not run.
    pub(super) image: &'a str,
    /// The hash of `$BOTTLE_HOME`.
    pub(super) home: &'a str,
}

/// Returns the name of the marker for this program.
fn mark_of(program: &Program) -> String {
    format!("bottle-program-{}", &program.id[..DIGITS.min(program.id.len())])
}

async fn make(
    docker: &Docker,
    program: &Program,
    scratch_source: ScratchSource<'_>,
    mark: &str,
    name: &str,
) -> Result<String, BackendError> {
    let by = owner_label::this_process(scratch_source.home);
    create(docker, name, HashMap::from([(owner_label::LABEL.to_owned(), by)])).await?;
    fill(docker, program, scratch_source, name).await?;
    let mark = create(docker, mark, HashMap::from([(FULL_LABEL.to_owned(), name.to_owned())])).await?;
    full(&mark)
}

/// Creates a volume, or returns the existing volume of this name.
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
    mark.labels.get(FULL_LABEL).cloned().ok_or_else(|| foreign_volume(&mark.name))
}

async fn fill(
    docker: &Docker,
    program: &Program,
    scratch_source: ScratchSource<'_>,
    name: &str,
) -> Result<(), BackendError> {
    let bytes = program.bytes()?;
    let mut archive = tar::Builder::new(Vec::with_capacity(bytes.len() + 4096));
    let packed = recipe::append(&mut archive, PROGRAM_FILE, 0o755, &bytes)
        .and_then(|()| archive.into_inner())
        .map_err(|error| BackendError::failed("cannot pack the program").because(error))?;
    let mount = Mount {
        target: Some(MOUNTED.to_owned()),
        source: Some(name.to_owned()),
        typ: Some(MountType::VOLUME),
        ..Mount::default()
    };
    let scratch =
        ScratchContainer::make(docker, scratch_source.image, scratch_source.home, vec![mount]).await?;
    let options = UploadToContainerOptionsBuilder::new().path(MOUNTED).build();
    let uploaded = docker
        .upload_to_container(&scratch.id, Some(options), bollard::body_full(Bytes::from(packed)))
        .await
        .map_err(|error| failed("cannot fill the program's volume", error));
    uploaded.and(scratch.remove(docker).await)
}

/// Lists unused volumes in the order of their removal. Lists volumes of other programs after [`EXPIRES_AFTER`]. Lists
/// incomplete volumes after the process that filled them has exited, or after [`INTERRUPTED_AFTER`] if that process is
/// unknown.
///
/// # Errors
/// [`BackendError`] when the engine cannot be queried.
pub(super) async fn unused(
    docker: &Docker,
    program: Option<&Program>,
    home: &str,
) -> Result<Vec<Unused>, BackendError> {
    let (all, free) = tokio::try_join!(list(docker, false), list(docker, true))?;
    let used = |name: &str| !free.iter().any(|volume| volume.name == name);
    let mark = program.map(mark_of).unwrap_or_default();
    // The marker is removed before the volume that it names. A start that finds no marker fills a new volume.
    let mut names = expired(&all, &mark, home, Timestamp::now());
    let of_used = |name: &str| {
        let full = all.iter().find(|volume| volume.name == name).and_then(|v| v.labels.get(FULL_LABEL));
        full.is_some_and(|full| all.iter().any(|volume| volume.name == *full) && used(full))
    };
    names.retain(|name| !used(name) && !of_used(name));
    let why = "it contains the program of another version, or an incomplete one";
    let one = |id| Unused { kind: VOLUME.to_owned(), id, why: why.to_owned(), bytes: None };
    Ok(names.into_iter().map(one).collect())
}

/// Returns every volume that contains the program. With `free`, returns only the volumes that no container uses.
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

/// Returns the volumes to remove, in this order. The `current` marker stays at any age, because a start may be about to
/// use it.
fn expired(volumes: &[Volume], current: &str, home: &str, now: Timestamp) -> Vec<String> {
    let older = |volume: &Volume, than: Duration| {
        let made = volume.created_at.as_deref().and_then(|text| text.parse::<Timestamp>().ok());
        made.is_some_and(|made| now.duration_since(made).unsigned_abs() > than)
    };
    let (marks, programs): (Vec<_>, Vec<_>) =
        volumes.iter().partition(|volume| volume.labels.contains_key(FULL_LABEL));
    let (old, kept): (Vec<_>, Vec<_>) =
        marks.into_iter().partition(|mark| mark.name != current && older(mark, EXPIRES_AFTER));
    let is_marked = |program: &Volume| kept.iter().any(|mark| mark.labels[FULL_LABEL] == program.name);
    let interrupted = |program: &Volume| {
        let exited =
            program.labels.get(owner_label::LABEL).and_then(|label| owner_label::has_exited(label, home));
        exited.unwrap_or_else(|| older(program, INTERRUPTED_AFTER))
    };
    let unmarked = programs.into_iter().filter(|program| !is_marked(program) && interrupted(program));
    old.iter().copied().chain(unmarked).map(|volume| volume.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expires_old_versions_and_interrupted_attempts_with_markers_first() {
        let now: Timestamp = "2026-02-01T00:00:00Z".parse().expect("a time");
        let volume = |name: &str, made: &str, full: Option<&str>| Volume {
            name: name.to_owned(),
            created_at: Some(made.to_owned()),
            labels: full.map(|full| (FULL_LABEL.to_owned(), full.to_owned())).into_iter().collect(),
            ..Volume::default()
        };
        let by = |name: &str, owner: String| Volume {
            labels: [(owner_label::LABEL.to_owned(), owner)].into(),
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
        let expired = expired(&volumes, "own", "0123abcd", now);
        assert_eq!(expired, ["old", "killed", "old-1", "cut-off"]);
    }
}
