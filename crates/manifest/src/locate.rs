//! Finds the file of the manifest with a given name.
//!
//! ```text
//! agent   <cwd>/.bottle/agents/NAME.md   then   $BOTTLE_HOME/agents/NAME.md    then   shipped
//! bottle                                        $BOTTLE_HOME/bottles/NAME.md   then   shipped
//! ```
//! [`Manifests::list`] uses only file names, so a broken manifest does not prevent the listing of other manifests.
//! Every file is read with the function [`read`]. This function accepts only a regular UTF-8 file of limited size
//! inside its root directory, and refuses links that point outside. If a file exists but cannot be used, the search
//! fails. It does not continue in the next directory, where another manifest may have the same name.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use bottle_host::Host;
use bottle_policy::names::Name;
use bottle_repository::{Directory, ReadError};
use bottle_text::yaml::MAX_DOCUMENT;

use super::agent::AgentManifest;
use super::bottle::BottleLayer;
use super::error::ManifestError;
use super::shipped;
use super::source::{Kind, Place, Source};
use super::summary::summary;
use super::write_manifest::path_of;

/// The maximum number of files that are listed in a directory; further files are left out of the list. Users do not
/// write this many manifests by hand.
const MAX_LISTED: usize = 10_000;

/// The directories that may contain manifests.
#[derive(Debug, Clone)]
pub struct Homes {
    /// `$BOTTLE_HOME`, absolute.
    pub bottle_home: PathBuf,
    /// The user's home directory.
    pub user_home: PathBuf,
    /// The working directory, which may be a project that contains agent manifests.
    pub cwd: PathBuf,
}

impl From<&Host> for Homes {
    fn from(host: &Host) -> Self {
        Self { bottle_home: host.home.clone(), user_home: host.user_home.clone(), cwd: host.cwd.clone() }
    }
}

/// The manifests in all directories of [`Homes`].
#[derive(Debug, Clone)]
pub struct Manifests {
    homes: Homes,
    /// `<cwd>/.bottle`. `None` if this directory is `$BOTTLE_HOME`. By default, this is the case if the working
    /// directory is the user's home directory.
    project: Option<PathBuf>,
}

/// The manifests of one kind, listed by name.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// The manifests, sorted by name.
    pub entries: Vec<Entry>,
    /// Which files were skipped and why, one sentence each.
    pub warnings: Vec<String>,
}

/// The name and file of a manifest that has not been read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name of the manifest.
    pub name: Name,
    /// The file of the manifest.
    pub source: Source,
    /// If this manifest shadows another manifest of the same name, the place of the shadowed manifest.
    pub replaces: Option<Place>,
}

impl Manifests {
    /// Creates a view of the manifests in these directories. The only file access is the check whether the project's
    /// directory is `$BOTTLE_HOME`.
    #[must_use]
    pub fn new(homes: Homes) -> Self {
        let project = homes.cwd.join(".bottle");
        let same = project == homes.bottle_home
            || matches!((project.canonicalize(), homes.bottle_home.canonicalize()), (Ok(a), Ok(b)) if a == b);
        Self { project: (!same).then_some(project), homes }
    }

    /// Returns the directories that may contain manifests.
    #[must_use]
    pub fn homes(&self) -> &Homes {
        &self.homes
    }

    /// Lists the manifests of a kind by file name, without reading the files.
    #[must_use]
    pub fn list(&self, kind: Kind) -> Listing {
        let mut found: BTreeMap<Name, Entry> = BTreeMap::new();
        let mut warnings = Vec::new();
        for (name, _) in shipped::all(kind) {
            if let Ok(name) = Name::try_from((*name).to_owned()) {
                found.insert(
                    name.clone(),
                    Entry { source: shipped_source(kind, &name), name, replaces: None },
                );
            }
        }
        for (place, root) in self.roots(kind).into_iter().rev() {
            for name in names_in(&root.join(kind.directory()), &mut warnings) {
                let source = Source { place, path: path_of(&root, kind, &name).into() };
                let replaces = found.get(&name).map(|shadowed| shadowed.source.place);
                found.insert(name.clone(), Entry { name, source, replaces });
            }
        }
        if kind == Kind::Bottle {
            warnings.extend(self.ignored_bottles());
        }
        Listing { entries: found.into_values().collect(), warnings }
    }

    /// Returns a warning if the project contains a directory `bottles/`, which is ignored.
    #[must_use]
    pub fn ignored_bottles(&self) -> Option<String> {
        let directory = self.project.as_ref()?.join(Kind::Bottle.directory());
        directory.symlink_metadata().ok()?;
        let source = Source { place: Place::Project, path: directory.into() };
        Some(format!(
            "{source} is ignored: a project must not define what its agents may reach; put bottles in $BOTTLE_HOME/bottles"
        ))
    }

    /// Finds the file of the manifest with this name.
    ///
    /// # Errors
    /// Returns [`ManifestError`] if a directory cannot be searched.
    pub fn find(&self, kind: Kind, name: &Name) -> Result<Option<Entry>, ManifestError> {
        let mut found: Option<Entry> = None;
        for (place, root) in self.roots(kind) {
            let source = Source { place, path: path_of(&root, kind, name).into() };
            match source.path.symlink_metadata() {
                Ok(_) => match &mut found {
                    None => found = Some(Entry { name: name.clone(), source, replaces: None }),
                    Some(first) => first.replaces = first.replaces.or(Some(place)),
                },
                Err(error) if is_absent(&error) => {}
                Err(error) => return Err(ManifestError::whole(&source, format!("cannot be read: {error}"))),
            }
        }
        if shipped::text(kind, name.as_str()).is_some() {
            match &mut found {
                None => {
                    found = Some(Entry {
                        name: name.clone(),
                        source: shipped_source(kind, name),
                        replaces: None,
                    });
                }
                Some(first) => first.replaces = first.replaces.or(Some(Place::Shipped)),
            }
        }
        Ok(found)
    }

    /// Reads an agent manifest. Returns `None` if no file has this name.
    ///
    /// # Errors
    /// Returns [`ManifestError`] if the file cannot be used.
    pub fn agent(&self, name: &Name) -> Result<Option<AgentManifest>, ManifestError> {
        self.load(Kind::Agent, name, AgentManifest::parse)
    }

    /// Reads a bottle manifest. Returns `None` if no file has this name.
    ///
    /// # Errors
    /// Returns [`ManifestError`] if the file cannot be used.
    pub fn bottle(&self, name: &Name) -> Result<Option<BottleLayer>, ManifestError> {
        self.load(Kind::Bottle, name, BottleLayer::parse)
    }

    /// Returns every shipped manifest: its kind, name and text.
    pub fn shipped() -> impl Iterator<Item = (Kind, Name, &'static str)> {
        [Kind::Agent, Kind::Bottle].into_iter().flat_map(|kind| {
            let named = move |(name, text): &(&str, &'static str)| Some((kind, (*name).parse().ok()?, *text));
            shipped::all(kind).iter().filter_map(named)
        })
    }

    /// Returns the one-line summary of a manifest. Returns `None` if the manifest has no summary, or if no file has
    /// this name.
    ///
    /// # Errors
    /// Returns [`ManifestError`] if the file cannot be used.
    pub fn summary(&self, kind: Kind, name: &Name) -> Result<Option<String>, ManifestError> {
        let summary = self.load(kind, name, |name, source, text| {
            match kind {
                Kind::Agent => drop(AgentManifest::parse(name, source, text)?),
                Kind::Bottle => drop(BottleLayer::parse(name, source, text)?),
            }
            Ok(summary(text))
        });
        summary.map(Option::flatten)
    }

    /// Parses the user's agent of this name, or else the shipped agent of this name. Ignores an agent of the same name
    /// in a project.
    ///
    /// # Errors
    /// Returns [`ManifestError`] if the file cannot be used.
    pub fn own_agent(&self, name: &Name) -> Result<Option<AgentManifest>, ManifestError> {
        Self { project: None, ..self.clone() }.agent(name)
    }

    fn load<T>(
        &self,
        kind: Kind,
        name: &Name,
        parse: impl Fn(Name, Source, &str) -> Result<T, ManifestError>,
    ) -> Result<Option<T>, ManifestError> {
        let Some(Entry { source, .. }) = self.find(kind, name)? else { return Ok(None) };
        let text = self.text(kind, name, &source)?;
        parse(name.clone(), source, &text).map(Some)
    }

    /// Returns the text of a manifest.
    ///
    /// # Errors
    /// Returns [`ManifestError`] if the file cannot be read, is not UTF-8, or is too large.
    pub fn text(&self, kind: Kind, name: &Name, source: &Source) -> Result<String, ManifestError> {
        match source.place {
            Place::Shipped => Ok(shipped::text(kind, name.as_str()).unwrap_or_default().to_owned()),
            Place::Home => read(source, &self.homes.bottle_home),
            Place::Project => read(source, &self.homes.cwd),
        }
    }

    /// Returns the directories with manifests of this kind, in the order of precedence.
    fn roots(&self, kind: Kind) -> Vec<(Place, PathBuf)> {
        let home = (Place::Home, self.homes.bottle_home.clone());
        match (kind, &self.project) {
            (Kind::Agent, Some(project)) => vec![(Place::Project, project.clone()), home],
            _ => vec![home],
        }
    }
}

fn shipped_source(kind: Kind, name: &Name) -> Source {
    Source { place: Place::Shipped, path: path_of(Path::new(""), kind, name).into() }
}

/// Whether the error means that the path does not exist, or that a part of it is not a directory.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Returns the names of the manifests in a directory, sorted. Hidden files are ignored without a warning.
fn names_in(directory: &Path, warnings: &mut Vec<String>) -> Vec<Name> {
    let entries = match directory.read_dir() {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Vec::new(),
        Err(error) => {
            warnings.push(format!("cannot list {directory:?}: {error}"));
            return Vec::new();
        }
    };
    let mut files: Vec<String> = entries
        .take(MAX_LISTED)
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .filter(|file| !file.starts_with('.'))
        .collect();
    files.sort();
    let mut names = Vec::new();
    for file in files {
        match file.strip_suffix(".md").and_then(|stem| stem.parse().ok()) {
            Some(name) => names.push(name),
            None => warnings.push(format!(
                "{:?} is skipped: a manifest's file is named [a-z][a-z0-9-]*.md",
                directory.join(file)
            )),
        }
    }
    names
}

/// Reads a manifest file, which must be inside `root`.
fn read(source: &Source, root: &Path) -> Result<String, ManifestError> {
    let fault = |message: String| ManifestError::whole(source, message);
    let unreadable = |error: io::Error| fault(format!("cannot be read: {error}"));
    let real = source.path.canonicalize().map_err(unreadable)?;
    let real_root = root.canonicalize().map_err(unreadable)?;
    let Ok(inside) = real.strip_prefix(&real_root) else {
        return Err(fault(format!("is a link that points outside {}", root.display()))
            .hint("put the file itself there"));
    };
    // If a directory is replaced by a link after the check above, the read does not follow the link.
    let read =
        Directory::open_without_link(&real_root).map_err(unreadable)?.read(inside, MAX_DOCUMENT as u64);
    let bytes = match read {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Err(unreadable(io::ErrorKind::NotFound.into())),
        Err(ReadError::NotRegular(_)) => return Err(fault("cannot be read: not a regular file".to_owned())),
        Err(ReadError::TooLong { .. }) => {
            return Err(fault(format!(
                "is larger than {} KiB, the most a manifest may have",
                MAX_DOCUMENT / 1024
            )));
        }
        Err(ReadError::System { error, .. }) => return Err(unreadable(error)),
    };
    String::from_utf8(bytes).map_err(|error| {
        let line =
            1 + error.as_bytes()[..error.utf8_error().valid_up_to()].iter().filter(|b| **b == b'\n').count();
        fault(format!("is not UTF-8 text (line {line})"))
    })
}
