//! Imports an archive as a kept bottle.
//!
//! ```text
//!   archive ─► staging: every digest is verified ─► what it is, who signed it ─► plan of this user's manifests
//!           ─► the user confirms ─► claim of the slug ─► snapshot ─► kept, for a resume
//! ```
//! The archive is untrusted, and grants no permissions: this user's manifests decide what the bottle may do. The new
//! bottle gets its own slug. At each start, the bottle gets a new certificate authority and a new canary.

use std::io::{self, BufReader, Read};
use std::path::PathBuf;

use bottle_backend::portable_image::{Import as Request, Imported, RootKind};
use bottle_backend::{Origin, Prepared, Preview, ProgressSink, Step};
use bottle_guest::file_clock::before_any_change;
use bottle_host::{Host, Settings, disk};
use bottle_instance::committed::{self, Committed, CommittedList};
use bottle_instance::portable::{BadArchive, Metadata, PublicKey, Received, SigningKey, Staging, receive};
use bottle_instance::record::Record;
use bottle_instance::{Claim, Store, canaries};
use bottle_manifest::agent_provider::Image;
use bottle_manifest::resolve::{Selection, resolve};
use bottle_plan::{Flags, ImageSource, Plan, Workspace};
use bottle_policy::names::Name;
use bottle_protocol::session::guest::SecretText;
use jiff::Timestamp;
use rand::RngExt as _;

use super::failure::{Failure, Kind};
use super::launch::preflight::Preflight;
use super::launch::{backend, prepare, require_free_slug, require_host_keys};
use super::manifests::manifests;
use super::notice::Notify;
use super::report::{Imported as Document, SignedBy};
use super::text::inert;

/// A request to import an archive as a bottle.
#[derive(Debug, Clone)]
pub struct ImportOrder {
    /// The path of the archive, for messages.
    pub archive: PathBuf,
    /// The label of the new bottle.
    pub label: Option<String>,
    /// The agent. `None` for the agent that the archive names.
    pub agent: Option<Name>,
    /// The bottle manifests, in order. Empty for the manifests that the archive names.
    pub bottles: Vec<Name>,
    /// The backend. If `None`, the backend that the manifest or the settings name is used, otherwise the first usable
    /// backend.
    pub backend: Option<String>,
    /// The image to which the archive's files are added. Only for an archive without system files.
    pub image: Option<Image>,
}

/// An archive whose digests were verified. Dropping the value removes the archive's extracted files.
pub struct Archive {
    /// The content of the archive.
    pub received: Received,
    layout: PathBuf,
    _staging: Staging,
}

/// An import that the user has not confirmed yet.
pub struct ImportPreflight {
    /// The archive.
    pub archive: Archive,
    /// The launch of the bottle that the import creates.
    pub launch: Preflight,
    /// Who signed the archive.
    pub signer: Signer,
    /// The image that the user named.
    image: Option<Image>,
}

/// Who signed an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signer {
    /// The archive is not signed.
    Nobody,
    /// The key of this `$BOTTLE_HOME`.
    Own(PublicKey),
    /// A key that `settings.yml` lists, and the name of the key in `settings.yml`.
    Known(PublicKey, String),
    /// A key that is neither the key of this `$BOTTLE_HOME` nor in `settings.yml`.
    Unknown(PublicKey),
}

impl ImportOrder {
    /// Reads an archive, and verifies its digests. `open` runs on another thread and opens the archive.
    ///
    /// # Errors
    /// When the archive cannot be read, or is damaged.
    pub async fn receive(
        &self,
        host: &Host,
        open: impl FnOnce() -> io::Result<Box<dyn Read>> + Send + 'static,
        progress: ProgressSink,
    ) -> Result<Archive, Failure> {
        let failed = |error| self.refused(BadArchive::Disk(error));
        let staging = Staging::create(host).map_err(failed)?;
        let layout = staging.make("image").map_err(failed)?;
        let to = layout.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let mut archive = open().map_err(BadArchive::Unreadable)?;
            receive(&mut BufReader::with_capacity(1 << 20, &mut archive), &to, &progress)
        });
        let read = reading.await.map_err(|error| Failure::cannot("read the archive", error))?;
        let received = read.map_err(|error| self.refused(error))?;
        Ok(Archive { received, layout, _staging: staging })
    }

    fn refused(&self, error: BadArchive) -> Failure {
        let file = self.archive.display();
        let hint = match &error {
            BadArchive::Newer(_) => {
                "use that version of bottle, or export the bottle with this one".to_owned()
            }
            BadArchive::Foreign(None) => "name a file that `bottle export SLUG -o FILE` wrote".to_owned(),
            BadArchive::Foreign(Some(format)) => {
                format!("decompress it with {format}, and import the file that is in it")
            }
            BadArchive::Refused(_) => {
                "compare the file with the one at its source, and get it again; nothing was imported"
                    .to_owned()
            }
            BadArchive::Unreadable(_) => "check the path and its permissions".to_owned(),
            BadArchive::Disk(error) => disk::hint(error).to_owned(),
        };
        let error = Failure::from_error(Kind::Failed, &error);
        error.reworded(|message| format!("cannot import {file}: {}", inert(message))).about(file).hint(hint)
    }

    /// Determines who signed the archive, and which bottle the import would create. Changes nothing.
    ///
    /// # Errors
    /// When the signature is wrong, or when the bottle cannot be created.
    pub async fn preflight(
        &self,
        archive: Archive,
        host: &Host,
        settings: &Settings,
    ) -> Result<ImportPreflight, Failure> {
        let signer = self.signer(host, settings, &archive.received)?;
        let launch = self.launch(host, settings, &archive.received.metadata).await?;
        Ok(ImportPreflight { archive, launch, signer, image: self.image.clone() })
    }

    fn signer(&self, host: &Host, settings: &Settings, received: &Received) -> Result<Signer, Failure> {
        let Some(signature) = &received.signature else { return Ok(Signer::Nobody) };
        let Some(key) = signature.verify(&received.digests) else {
            let error = BadArchive::Refused("its signature is wrong".to_owned());
            return Err(self.refused(error));
        };
        let own = SigningKey::existing(&host.home)
            .map_err(|error| Failure::cannot("read the key of this home", error))?;
        if own.is_some_and(|own| own.public() == key) {
            return Ok(Signer::Own(key));
        }
        let known = settings.known_keys.iter().find(|(_, known)| **known == key.to_string());
        Ok(known.map_or(Signer::Unknown(key), |(name, _)| Signer::Known(key, name.clone())))
    }

    /// Resolves this user's manifests, chooses the backend and builds the plan.
    async fn launch(
        &self,
        host: &Host,
        settings: &Settings,
        metadata: &Metadata,
    ) -> Result<Preflight, Failure> {
        let agent = self.agent.clone().unwrap_or_else(|| metadata.agent.clone());
        let bottles = if self.bottles.is_empty() { &metadata.bottles } else { &self.bottles };
        let selection = Selection { agent, bottles: bottles.clone() };
        let found = resolve(&selection, &manifests(host)).map_err(Failure::from);
        let resolved = found.map_err(|error| match self.agent.is_some() || !self.bottles.is_empty() {
            true => error,
            false => error.hint(
                "the archive names a manifest that you do not have: choose your own with `--agent` and `--bottle`",
            ),
        })?;
        let image = match (metadata.root, &self.image) {
            (RootKind::Complete, Some(_)) => {
                return Err(Failure::usage("the archive contains an image of its own")
                    .about("--image")
                    .hint("leave `--image` out"));
            }
            (RootKind::Complete, None) => Some(ImageSource::Imported(String::new())),
            (RootKind::Home, image) => image.clone().map(ImageSource::from),
        };
        let flags = Flags {
            label: self.label.clone(),
            workspace: Workspace::Empty,
            detached: true,
            // The agent's command may need a task, but only `bottle resume` passes one. The preflight shows the
            // placeholder `{task}` instead.
            task: Some("{task}".to_owned()),
            resumed: true,
            image,
            ..Flags::default().with_settings(settings)
        };
        let mut rng = rand::rng();
        let mut plan = bottle_plan::build(host, &resolved.manifest, &flags, &mut |bytes| rng.fill(bytes))?;
        let named = self.backend.clone().or_else(|| backend::preferred(&resolved, settings));
        let backend = backend::choose(host, &mut plan, named.as_deref()).await?;
        require_free_slug(host, &plan)?;
        require_host_keys(&plan)?;
        let preview = match metadata.root {
            RootKind::Complete => Preview::default(),
            RootKind::Home => {
                let preview = backend.preview(&plan).await.map_err(Failure::from);
                preview.map_err(|error| match self.image {
                    Some(_) => error,
                    None => error.hint(
                        "the bottle used the programs of its machine: install them here, or name an image with \
                         `--image`",
                    ),
                })?
            }
        };
        Ok(Preflight {
            resolved,
            plan,
            preview,
            backend,
            origin: Origin::New,
            resumed: None,
            files: Some(format!("the files of the archive {}", self.archive.display())),
            copied: Vec::new(),
            live: Vec::new(),
        })
    }
}

impl ImportPreflight {
    /// Prepares the image to which the archive's files are added. Does nothing if the archive contains a complete
    /// image.
    ///
    /// # Errors
    /// When an image is unavailable.
    pub async fn prepare(
        &self,
        progress: &ProgressSink<Step>,
        notify: Notify<'_>,
    ) -> Result<Prepared, Failure> {
        let Preflight { plan, backend, preview, .. } = &self.launch;
        if self.archive.received.metadata.root == RootKind::Complete {
            return Ok(Prepared::default());
        }
        prepare(&**backend, plan, &Default::default(), &preview.notes, progress, notify).await
    }

    /// Claims the slug, and creates the bottle's snapshot from the archive.
    ///
    /// # Errors
    /// When the bottle cannot be created. No part of the bottle remains in this case.
    pub async fn import(
        &self,
        host: &Host,
        prepared: &Prepared,
        progress: ProgressSink,
    ) -> Result<(), Failure> {
        let Preflight { plan, backend, .. } = &self.launch;
        let (layout, metadata) = (self.archive.layout.as_path(), &self.archive.received.metadata);
        let slug = &plan.identity.slug;
        let failed = |error: io::Error| Failure::cannot("write the bottle's state", error);
        let new = Record { engine: backend.identity().await?, ..Record::starting(plan, host) };
        let claim = Store::of(host).claim(new).map_err(|error| {
            let hint = error.hint();
            Failure::from_error(Kind::State, &error).hint(hint)
        })?;
        let covers = before_any_change();
        let request = Request { slug, layout, root: metadata.root, prepared, progress };
        let imported = match backend.import(request).await {
            Ok(imported) => imported,
            Err(error) => {
                let _ = claim.remove();
                return Err(error.into());
            }
        };
        let snapshot = imported.snapshot.clone();
        if let Err(error) = record(&claim, metadata, plan, self.image.as_ref(), imported, covers) {
            // No bottle's state names the snapshot. If the snapshot cannot be removed here, a cleanup finds it.
            let _ = backend.remove_snapshot(&snapshot).await;
            let _ = claim.remove();
            return Err(failed(error));
        }
        Ok(())
    }

    /// Returns the output document about the imported bottle.
    pub fn document(&self) -> Document {
        let (plan, metadata) = (&self.launch.plan, &self.archive.received.metadata);
        let identity = &plan.identity;
        let (status, key, name) = match &self.signer {
            Signer::Nobody => ("none", None, None),
            Signer::Own(key) => ("own", Some(key), None),
            Signer::Known(key, name) => ("known", Some(key), Some(name.clone())),
            Signer::Unknown(key) => ("unknown", Some(key), None),
        };
        Document {
            slug: identity.slug.to_string(),
            label: identity.label.clone(),
            agent: identity.agent.to_string(),
            bottles: identity.bottles.iter().map(ToString::to_string).collect(),
            backend: plan.backend.clone(),
            root: metadata.root,
            exported_from: metadata.slug.to_string(),
            made_at: metadata.made_at,
            accepted: metadata.accepted.clone(),
            signature: SignedBy { status, key: key.map(ToString::to_string), name },
            resume: format!("bottle resume {}", identity.slug),
        }
    }
}

fn record(
    claim: &Claim,
    metadata: &Metadata,
    plan: &Plan,
    own_image: Option<&Image>,
    imported: Imported,
    covers: Timestamp,
) -> io::Result<()> {
    let Imported { snapshot, image } = imported;
    let image = image.or_else(|| own_image.cloned().map(ImageSource::from));
    let canaries: Vec<SecretText> = metadata.canaries.iter().map(|canary| canary.as_str().into()).collect();
    if !canaries.is_empty() {
        canaries::write(claim.directory(), &canaries)?;
        canaries::write_imported(claim.directory(), &canaries)?;
    }
    claim.write_manifest(&plan.manifest)?;
    claim.update(|record| record.image = image)?;
    let current = Some(snapshot.reference.clone());
    let snapshots = vec![Committed { snapshot, covers, removed_by: None }];
    committed::write(claim.directory(), &CommittedList { snapshots, current })?;
    claim.preserve(false)
}
