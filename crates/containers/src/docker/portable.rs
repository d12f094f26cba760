//! Exports snapshots as images, and imports images as snapshots.
//!
//! ```text
//!   export:  engine ─save─► a temporary file ─► layers as they are
//!   import:  layers ─check─► ─load─► an image with the snapshot's labels               a complete root
//!            layers ─unpack─► scratch container of the bottle's image ─commit─► image   a home and a workspace
//! ```

use std::io::{self, Write};
use std::path::Path;

use bollard::query_parameters::ImportImageOptionsBuilder;
use bottle_backend::image::account::{ACCOUNT_LABEL, Account};
use bottle_backend::image::saved::check::{self, Checked};
use bottle_backend::image::saved::layer::{self, Budget};
use bottle_backend::image::saved::{BadImage, Container, Saved, architecture};
use bottle_backend::portable_image::{
    Export, ExportedImage, ImageConfig, Import, Imported, Layer, LayerStore, RootKind,
};
use bottle_backend::{BackendError, Copied, ProgressSink, run_blocking};
use bottle_host::files;
use bottle_plan::ImageSource;
use bottle_policy::names::Slug;
use futures_util::StreamExt;
use jiff::Timestamp;
use tokio::io::AsyncWriteExt;

use super::commit::{SNAPSHOT_REPOSITORY, inspect};
use super::engine::{Engine, EngineError};
use super::home_import::add_home;
use super::images::LEFT_OUT_LABEL;
use super::imported_snapshot::{find, snapshot_labels};
use super::names::Names;
use super::podman::COMMITTED_WITHIN;
use super::snapshot_images::image_of;

/// The name of the temporary file that contains an image that the engine saved.
const SAVED: &str = "saved.tar";

/// Implements [`bottle_backend::Snapshots::export`].
///
/// # Errors
/// [`BackendError`] when the snapshot does not exist, or the engine fails.
pub(super) async fn export(
    engine: &Engine,
    names: &Names,
    export: Export<'_>,
) -> Result<ExportedImage, BackendError> {
    let Export { snapshot, base, scratch, layers } = export;
    let doing = format!("export the snapshot of {}", snapshot.slug);
    let failed = |error: EngineError| error.during(&doing);
    let image = image_of(engine, names, snapshot).await?;
    let labels = inspect(engine, &image).await.map_err(failed)?.map(|image| image.labels).unwrap_or_default();
    let account =
        labels.get(ACCOUNT_LABEL).and_then(|label| Account::from_label(label)).ok_or_else(|| {
            BackendError::failed(format!("cannot {doing}: its image does not name the agent's account"))
        })?;
    let base = match base {
        Some(base) => base_layers(engine, base).await.map_err(failed)?,
        None => Vec::new(),
    };
    let file = scratch.join(SAVED);
    save(engine, &image, &file).await.map_err(|error| error.during(&doing))?;
    let added = run_blocking(move || add_layers(&file, &base, layers)).await?;
    let (layers, mut config) =
        added.map_err(|error| BackendError::failed(format!("cannot {doing}")).because(error))?;
    let kept = [ACCOUNT_LABEL, LEFT_OUT_LABEL];
    config.labels = labels.into_iter().filter(|(name, _)| kept.contains(&name.as_str())).collect();
    Ok(ExportedImage { layers, config, root: RootKind::Complete, home: account.home })
}

/// Implements [`bottle_backend::Snapshots::import`].
///
/// # Errors
/// [`BackendError`] when the image is damaged or hostile, or the engine refuses it.
pub(super) async fn import(
    engine: &Engine,
    names: &Names,
    import: Import<'_>,
) -> Result<Imported, BackendError> {
    let Import { slug, layout, root, prepared, progress } = import;
    match root {
        RootKind::Complete => load(engine, names, slug, layout, progress).await,
        RootKind::Home => {
            let inside = prepared.inside.as_ref();
            let inside = inside.ok_or_else(|| BackendError::failed("the bottle has no image"))?;
            let snapshot = add_home(engine, names, slug, layout, inside, &progress).await?;
            Ok(Imported { snapshot, image: None })
        }
    }
}

/// Returns the digests of the layers of an image. Empty if the image no longer exists.
async fn base_layers(engine: &Engine, image: &str) -> Result<Vec<String>, EngineError> {
    let found = engine.call_if_there(engine.docker().inspect_image(image)).await?;
    Ok(found.and_then(|image| image.root_fs).and_then(|root| root.layers).unwrap_or_default())
}

/// Saves an image to a file.
async fn save(engine: &Engine, image: &str, file: &Path) -> Result<(), EngineError> {
    let disk = |error: io::Error| EngineError::Disconnected(format!("cannot store the image: {error}"));
    let mut options = tokio::fs::OpenOptions::from(files::private_file());
    let out = options.write(true).create_new(true).open(file).await.map_err(disk)?;
    let mut out = tokio::io::BufWriter::with_capacity(1 << 20, out);
    let mut chunks = engine.docker().export_image(image).boxed();
    while let Some(chunk) = chunks.next().await {
        out.write_all(&chunk?).await.map_err(disk)?;
    }
    out.flush().await.map_err(disk)
}

/// Adds the layers of a saved image. Layers that are not in `base` are the bottle's own layers. Blocks.
///
/// # Errors
/// [`BadImage`] when the image is damaged.
pub(crate) fn add_layers(
    file: &Path,
    base: &[String],
    mut layers: LayerStore,
) -> Result<(LayerStore, ImageConfig), BadImage> {
    let container = Container::archive(file)?;
    let saved = Saved::read(&container, architecture())?;
    let contents: Vec<String> = saved.layers.iter().map(|layer| layer.content.to_string()).collect();
    let shared = if contents.starts_with(base) { base.len() } else { 0 };
    let mut budget = Budget::full();
    for (index, one) in saved.layers.iter().enumerate() {
        layers.add(index >= shared, |out| {
            let copied = layer::read(&container, one, &mut budget, |content| {
                io::copy(content, out).map(drop).map_err(BadImage::Disk)
            });
            copied.map_err(io::Error::other)
        })?;
    }
    std::fs::remove_file(file)?;
    Ok((layers, ImageConfig { user: saved.config.user, env: saved.config.env, ..ImageConfig::default() }))
}

/// Loads an image with the labels of a snapshot.
async fn load(
    engine: &Engine,
    names: &Names,
    slug: &Slug,
    layout: &Path,
    progress: ProgressSink,
) -> Result<Imported, BackendError> {
    let doing = format!("import {slug}");
    let checked = {
        let layout = layout.to_owned();
        run_blocking(move || check::image(&layout)).await?.map_err(|error| refused(slug, error))?
    };
    let labels = &checked.saved.config.labels;
    let account = labels.get(ACCOUNT_LABEL).filter(|label| Account::from_label(label).is_some());
    let account = account.ok_or_else(|| {
        BackendError::failed(format!("cannot {doing}: its image does not name the agent's account"))
    })?;
    let made_at = Timestamp::now();
    let tag = format!("{}-{slug}-{}", names.home(), made_at.as_microsecond());
    let mut own = vec![(ACCOUNT_LABEL, account.clone())];
    own.extend(labels.get(LEFT_OUT_LABEL).map(|list| (LEFT_OUT_LABEL, list.clone())));
    own.extend(snapshot_labels(names, slug, made_at));
    let config = ImageConfig {
        user: checked.saved.config.user.clone(),
        env: checked.saved.config.env.clone(),
        labels: own.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
    };
    let reference = format!("{SNAPSHOT_REPOSITORY}:{tag}");
    let named = reference.clone();
    let body = bottle_archive::stream(move |out| write_saved(out, &checked, &config, &named, &progress));
    let options = ImportImageOptionsBuilder::new().quiet(true).build();
    let patient = engine.docker().clone().with_timeout(COMMITTED_WITHIN);
    let loaded = async {
        let mut events = patient.import_image_stream(options, body, None).boxed();
        while let Some(event) = events.next().await {
            event?;
        }
        Ok(())
    };
    let failed = |error: EngineError| error.during(&doing);
    engine.call_within(COMMITTED_WITHIN, loaded).await.map_err(failed)?;
    let snapshot = find(engine, names, &reference, slug).await?;
    // The id of the image stays valid if the snapshot is removed while a container uses the image.
    let id = image_of(engine, names, &snapshot).await?;
    Ok(Imported { snapshot, image: Some(ImageSource::Imported(id)) })
}

/// Writes an image in the format of `docker save`.
fn write_saved(
    out: &mut dyn Write,
    checked: &Checked,
    config: &ImageConfig,
    name: &str,
    progress: &ProgressSink,
) -> io::Result<()> {
    let mut archive = tar::Builder::new(out);
    let layers: Vec<Layer> =
        checked.saved.layers.iter().map(|layer| Layer::of_content(layer.content)).collect();
    let config = config.json(&layers).to_string();
    let places: Vec<String> = (0..layers.len()).map(|index| format!("{index}/layer.tar")).collect();
    let manifest = serde_json::json!([{"Config": "config.json", "RepoTags": [name], "Layers": places}]);
    let mut add = |name: &str, size: u64, content: &mut dyn io::Read| {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o600);
        header.set_size(size);
        archive.append_data(&mut header, name, content)
    };
    add("config.json", config.len() as u64, &mut config.as_bytes())?;
    let manifest = manifest.to_string();
    add("manifest.json", manifest.len() as u64, &mut manifest.as_bytes())?;
    let (mut budget, mut bytes) = (Budget::full(), 0);
    for ((one, size), place) in checked.saved.layers.iter().zip(&checked.sizes).zip(&places) {
        // The content is verified again, because the engine must receive only complete layers.
        let sent = layer::read(&checked.container, one, &mut budget, |content| {
            add(place, *size, content).map_err(BadImage::Disk)
        });
        sent.map_err(io::Error::other)?;
        bytes += size;
        progress.report(Copied { files: 0, bytes });
    }
    archive.finish()
}

fn refused(slug: &Slug, error: BadImage) -> BackendError {
    match error {
        BadImage::Refused(why) => BackendError::failed(format!("cannot import {slug}: its image {why}"))
            .with_hint("get the archive again from its source"),
        error @ BadImage::Disk(_) => BackendError::failed(format!("cannot import {slug}")).because(error),
    }
}
