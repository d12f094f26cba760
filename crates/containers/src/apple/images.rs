//! Makes the images of agents and sidecars.
//!
//! ```text
//!   a directory or an archive in $BOTTLE_HOME ─► layers + own layers ─► localhost/bottle-agent:<hash>
//!   Dockerfile.sidecars + the program ─ `container build` ─────────► localhost/bottle-sidecars:<hash>
//!   the program ──────────────────────────────────────────────────► $BOTTLE_HOME/apple/program/bottle
//! ```
//! All references begin with `localhost/`, because `container` would fetch a missing image of any other name.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bottle_backend::image::account::{ACCOUNT_LABEL, Account};
use bottle_backend::image::build_lock;
use bottle_backend::image::config::{Config, notes, variables};
use bottle_backend::image::hash::Hash;
use bottle_backend::image::local::{self, IMAGE_HINT, Local, named};
use bottle_backend::image::saved::layer::{self, Budget};
use bottle_backend::image::saved::{BadImage, Container, Saved, architecture};
use bottle_backend::portable_image::ImageConfig;
use bottle_backend::static_program::{self, Program};
use bottle_backend::{
    BackendError, ImageInfo, Preview, ProgressSink, RoleInputs, Step, Unused, run_blocking,
};
use bottle_host::{Host, temporary};
use bottle_manifest::host_path;

use super::cli::Cli;
use super::layout::{Layout, Survey, directories_layer};
use super::output::Image;
use crate::docker::images::LEFT_OUT_LABEL;
use crate::docker::images::load::pack;

/// The repository of the agents' images.
const AGENT: &str = "localhost/bottle-agent";

/// The repository of the sidecars' images.
const SIDECARS: &str = "localhost/bottle-sidecars";

/// The label of an agent's image that contains the hash of the `$BOTTLE_HOME` for which the image was made.
pub(super) const HOME_LABEL: &str = "bottle.image.home";

/// The label of an agent's image that contains the image's source, relative to `$BOTTLE_HOME`.
const SOURCE_LABEL: &str = "bottle.image.source";

/// The [`Unused::kind`] of an image.
const IMAGE: &str = "image";

/// The version of the code that prepares images. The version is part of an image's hash, so a new version rebuilds
/// every image.
const READY_VERSION: &[u8] = b"1";

/// The Dockerfile of the sidecars' image.
const SIDECARS_DOCKERFILE: &str = include_str!("../../../../Dockerfile.sidecars");

/// The images of one `$BOTTLE_HOME`.
#[derive(Debug, Clone)]
pub(super) struct Images {
    host: Host,
    cli: Arc<Cli>,
}

impl Images {
    /// Creates the value for this `$BOTTLE_HOME`. Reads no image yet.
    pub(super) fn new(host: &Host, cli: Arc<Cli>) -> Self {
        Self { host: host.clone(), cli }
    }

    /// Returns the directory of this backend in `$BOTTLE_HOME`. Images are built in this directory.
    pub(super) fn directory(&self) -> PathBuf {
        self.host.home.join("apple")
    }

    /// Returns the platform of all images.
    pub(super) fn platform() -> String {
        format!("linux/{}", architecture())
    }

    /// Finds the program that runs in the containers.
    ///
    /// # Errors
    /// [`BackendError`] when there is no static program for Linux.
    pub(super) async fn program(&self) -> Result<Program, BackendError> {
        let running = self.host.program.clone();
        let find = move || static_program::find(&running, architecture(), "the containers of `container`");
        run_blocking(find).await?
    }

    /// Previews [`bottle_backend::Images::prepare`].
    ///
    /// # Errors
    /// [`BackendError`] when the image cannot be used, as far as this can be detected without making the image.
    pub(super) async fn preview(&self, path: &Path) -> Result<Preview, BackendError> {
        let source = self.inspect(path).await?;
        let reference = reference(&source);
        let images = self.cli.images().await?;
        let mut preview = Preview::default();
        match images.iter().find(|image| image.reference == reference) {
            Some(image) => preview.notes = notes_of(image),
            None => preview.makes.push(format!("{} is loaded: it is new or has changed", named(path))),
        }
        let sidecars = sidecars_reference(&self.program().await?);
        if !images.iter().any(|image| image.reference == sidecars) {
            preview.makes.push("the image for the sidecars is built: it is new or has changed".to_owned());
        }
        Ok(preview)
    }

    /// Returns the agent's image of this source, with notes for the user. Makes the image if it does not exist.
    ///
    /// # Errors
    /// [`BackendError`] when the image cannot be used. After an error, no part of the image exists.
    pub(super) async fn agent(
        &self,
        path: &Path,
        progress: &ProgressSink<Step>,
    ) -> Result<(ImageInfo, Vec<String>), BackendError> {
        let named = named(path);
        let source = self.inspect(path).await?;
        let reference = reference(&source);
        if self.find(&reference).await?.is_none() {
            let hash = reference.rsplit(':').next().unwrap_or_default();
            let _lock = build_lock::lock(&self.host, hash, &named, progress).await?;
            if self.find(&reference).await?.is_none() {
                progress.report(Step {
                    subject: named.clone(),
                    line: "loading it".to_owned(),
                    starts_stage: true,
                });
                self.make(path, source, &reference).await?;
            }
        }
        self.image(&reference, &named).await
    }

    /// Returns the image that was imported together with a bottle, with notes for the user.
    ///
    /// # Errors
    /// [`BackendError`] when the image was removed.
    pub(super) async fn imported(&self, reference: &str) -> Result<(ImageInfo, Vec<String>), BackendError> {
        self.image(reference, "the imported image").await
    }

    async fn image(&self, reference: &str, named: &str) -> Result<(ImageInfo, Vec<String>), BackendError> {
        let gone = || {
            BackendError::failed(format!("{named} was removed: `container` has no {reference}"))
                .with_hint("start again, or import the bottle again")
        };
        let image = self.find(reference).await?.ok_or_else(gone)?;
        let account = account_of(&image).ok_or_else(|| {
            BackendError::failed(format!("{named} does not name the agent's account"))
                .with_hint(format!("remove it with `container image delete {reference}`, and start again"))
        })?;
        let Account { name, uid, gid, home } = account;
        let env = variables(&image.env);
        let info =
            ImageInfo { image: reference.to_owned(), uid, gid, user: name, home, env, volumes: Vec::new() };
        Ok((info, notes_of(&image)))
    }

    /// Returns the image with this reference, if it exists.
    ///
    /// # Errors
    /// [`BackendError`] when `container` cannot list its images.
    pub(super) async fn find(&self, reference: &str) -> Result<Option<Image>, BackendError> {
        Ok(self.cli.images().await?.into_iter().find(|image| image.reference == reference))
    }

    async fn inspect(&self, path: &Path) -> Result<Local, BackendError> {
        let named = named(path);
        let wrong = |why: String| BackendError::failed(format!("{named} {why}")).with_hint(IMAGE_HINT);
        let real = host_path::real_within(&self.host.home, path).map_err(wrong)?;
        run_blocking(move || local::inspect(&real)).await?.map_err(wrong)
    }

    async fn make(&self, path: &Path, source: Local, reference: &str) -> Result<(), BackendError> {
        let named = named(path);
        let labels = [(HOME_LABEL, self.host.home_hash()), (SOURCE_LABEL, path.display().to_string())];
        let (directory, name) = (self.directory(), reference.to_owned());
        let packed = run_blocking(move || {
            let mut layout = Layout::new(&directory, ProgressSink::discard())?;
            let config = add_source(&mut layout, &source)?;
            let labels = labels.into_iter().filter(|(_, value)| !value.contains('='));
            let mut config = config;
            config.labels.extend(labels.map(|(name, value)| (name.to_owned(), value)));
            layout.pack(config, &[&name])
        });
        let (_directory, archive) = packed.await?.map_err(|error| match error {
            BadImage::Refused(why) => BackendError::failed(format!("{named} {why}")).with_hint(IMAGE_HINT),
            error @ BadImage::Disk(_) => BackendError::failed(format!("cannot load {named}")).because(error),
        })?;
        self.cli.load(&archive).await
    }

    /// Returns the sidecars' image, and the directory with the program of pid 1. Makes the image and the directory if
    /// they do not exist.
    ///
    /// # Errors
    /// [`BackendError`] when the image cannot be built.
    pub(super) async fn roles(&self, progress: &ProgressSink<Step>) -> Result<RoleInputs, BackendError> {
        let program = self.program().await?;
        let directory = self.place_program(program.clone()).await?;
        let sidecars = sidecars_reference(&program);
        if self.find(&sidecars).await?.is_none() {
            let subject = "the image for the sidecars";
            let hash = sidecars.rsplit(':').next().unwrap_or_default();
            let _lock = build_lock::lock(&self.host, hash, subject, progress).await?;
            if self.find(&sidecars).await?.is_none() {
                progress.report(Step {
                    subject: subject.to_owned(),
                    line: "building it".to_owned(),
                    starts_stage: true,
                });
                self.build_sidecars(program, &sidecars).await?;
            }
        }
        Ok(RoleInputs { sidecars, program: directory.display().to_string() })
    }

    async fn build_sidecars(&self, program: Program, reference: &str) -> Result<(), BackendError> {
        let (parent, id) = (self.directory(), program.id.clone());
        let context = run_blocking(move || {
            let failed = |error: io::Error| {
                BackendError::failed("cannot make the build context of the sidecars' image").because(error)
            };
            let directory = temporary::directory_in(&parent, ".new-").map_err(failed)?;
            fs::write(directory.path().join("Dockerfile"), SIDECARS_DOCKERFILE).map_err(failed)?;
            write_program(&directory.path().join("bottle"), &program)?;
            Ok::<_, BackendError>(directory)
        });
        let context = context.await??;
        self.cli.build(reference, &[("PROGRAM", &id)], context.path()).await.map_err(|error| {
            match error.hint {
                Some(_) => error,
                None => error.with_hint(
                    "its base image and its packages come from public registries, which the builder of \
                 `container` must reach",
                ),
            }
        })
    }

    /// Puts the program into the directory that containers mount. A running container continues to use the file that it
    /// has opened.
    async fn place_program(&self, program: Program) -> Result<PathBuf, BackendError> {
        let directory = self.program_directory();
        run_blocking(move || {
            let failed = |error: io::Error| {
                BackendError::failed(format!("cannot make {}", directory.display())).because(error)
            };
            DirBuilder::new().recursive(true).mode(0o755).create(&directory).map_err(failed)?;
            let (path, mark) = (directory.join("bottle"), directory.join("build-id"));
            let is_placed = fs::read_to_string(&mark).is_ok_and(|id| id == program.id) && path.is_file();
            if !is_placed {
                // Another start, even in this process, may put the program into the directory at the same time.
                let new = tempfile::Builder::new()
                    .prefix(".new-")
                    .tempfile_in(&directory)
                    .map_err(failed)?
                    .into_temp_path();
                write_program(&new, &program)?;
                new.persist(&path).map_err(|error| failed(error.error))?;
                fs::write(&mark, &program.id).map_err(failed)?;
            }
            Ok(directory)
        })
        .await?
    }

    /// Returns the directory with the program of pid 1. The path of the directory stays the same when the program
    /// changes, so that kept containers start with the current program.
    pub(super) fn program_directory(&self) -> PathBuf {
        self.directory().join("program")
    }

    /// Lists the agents' images of this `$BOTTLE_HOME` whose source changed or was removed, and the sidecars' images
    /// for other builds of the program. Excludes images on which a bottle is based.
    ///
    /// # Errors
    /// [`BackendError`] when `container` cannot list its images.
    pub(super) async fn unused(&self) -> Result<Vec<Unused>, BackendError> {
        let (images, containers) = (self.cli.images().await?, self.cli.containers().await?);
        let sidecars = self.program().await.map(|program| sidecars_reference(&program)).ok();
        let home = self.host.home_hash();
        let mut unused = Vec::new();
        for image in images {
            let why = if image.reference.starts_with(&format!("{SIDECARS}:")) && sidecars.is_some() {
                (sidecars.as_ref() != Some(&image.reference)).then_some("another build of bottle made it")
            } else if image.labels.get(HOME_LABEL) == Some(&home)
                && image.reference.starts_with(&format!("{AGENT}:"))
            {
                let source = image.labels.get(SOURCE_LABEL).map(PathBuf::from);
                let current = match source {
                    Some(source) => self.inspect(&source).await.ok().map(|source| reference(&source)),
                    None => None,
                };
                (current.as_ref() != Some(&image.reference)).then_some("its source changed or is gone")
            } else {
                None
            };
            let used = containers.iter().any(|container| container.image == image.reference);
            if let (Some(why), false) = (why, used) {
                let (kind, id) = (IMAGE.to_owned(), image.reference);
                unused.push(Unused { kind, id, why: why.to_owned(), bytes: Some(image.bytes) });
            }
        }
        Ok(unused)
    }

    /// Removes the images that are still unused. Returns the removed images.
    ///
    /// # Errors
    /// [`BackendError`] when an image cannot be removed.
    pub(super) async fn remove_unused(&self, unused: Vec<Unused>) -> Result<Vec<Unused>, BackendError> {
        let now = self.unused().await?;
        let mut removed = Vec::new();
        for one in unused.into_iter().filter(|one| now.iter().any(|other| other.id == one.id)) {
            self.cli.delete_image(&one.id).await?;
            removed.push(one);
        }
        Ok(removed)
    }
}

fn write_program(path: &Path, program: &Program) -> Result<(), BackendError> {
    let bytes = program.bytes()?;
    fs::write(path, bytes)
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(0o755)))
        .map_err(|error| BackendError::failed(format!("cannot write {}", path.display())).because(error))
}

fn reference(source: &Local) -> String {
    let mut hash = Hash::new("apple agent");
    hash.add(source.hash.as_bytes()).add(READY_VERSION);
    format!("{AGENT}:{}", hash.finish())
}

fn sidecars_reference(program: &Program) -> String {
    let mut hash = Hash::new("apple sidecars");
    hash.add(SIDECARS_DOCKERFILE.as_bytes()).add(program.id.as_bytes());
    format!("{SIDECARS}:{}", hash.finish())
}

/// Returns the agent's account from a label of the image.
pub(super) fn account_of(image: &Image) -> Option<Account> {
    image.labels.get(ACCOUNT_LABEL).and_then(|label| Account::from_label(label))
}

fn notes_of(image: &Image) -> Vec<String> {
    let left_out = image.labels.get(LEFT_OUT_LABEL).map(String::as_str).unwrap_or_default();
    let left_out: Vec<String> =
        left_out.split(',').filter(|one| !one.is_empty()).map(str::to_owned).collect();
    // Snapshots include the data of an image's volumes, because `container` creates no volumes for an image. So the
    // notes need not name volumes.
    notes(&left_out, &[])
}

/// Adds the layers of the source, and the layers that make the image usable for an agent. Returns the image's
/// configuration.
fn add_source(layout: &mut Layout, source: &Local) -> Result<ImageConfig, BadImage> {
    let mut survey = Survey::default();
    let config = if source.saved {
        add_saved(layout, &mut survey, source)?
    } else {
        add_plain(layout, &mut survey, source)?;
        Config::default()
    };
    let (account, own) = survey.account(&config.user)?;
    for layer in [own, directories_layer()?] {
        layout.layers.add(false, |out| out.write_all(&layer))?;
    }
    let labels = [(ACCOUNT_LABEL, account.label()), (LEFT_OUT_LABEL, config.left_out().join(","))];
    Ok(ImageConfig {
        user: format!("{}:{}", account.uid, account.gid),
        env: config.env,
        labels: labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
    })
}

fn add_saved(layout: &mut Layout, survey: &mut Survey, source: &Local) -> Result<Config, BadImage> {
    let container = match source.directory {
        true => Container::directory(&source.path)?,
        false => Container::archive(&source.path)?,
    };
    let saved = Saved::read(&container, architecture())?;
    let (mut surveyed, mut copied) = (Budget::full(), Budget::full());
    for one in &saved.layers {
        layer::read(&container, one, &mut surveyed, |content| survey.read(content))?;
        layout.layers.add(false, |out| {
            let copied = layer::read(&container, one, &mut copied, |content| {
                io::copy(content, out).map(drop).map_err(BadImage::Disk)
            });
            copied.map_err(io::Error::other)
        })?;
    }
    Ok(saved.config)
}

fn add_plain(layout: &mut Layout, survey: &mut Survey, source: &Local) -> Result<(), BadImage> {
    let archive = match source.directory {
        true => {
            let path = layout.temporary("plain.tar");
            pack(&source.path, &mut io::BufWriter::with_capacity(1 << 20, File::create_new(&path)?))?;
            path
        }
        false => source.path.clone(),
    };
    layer::plain(File::open(&archive)?, &mut Budget::full(), |content| survey.read(content))?;
    layout.layers.add(false, |out| io::copy(&mut File::open(&archive)?, out).map(drop))?;
    if source.directory {
        fs::remove_file(&archive)?;
    }
    Ok(())
}
