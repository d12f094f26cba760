//! Compares a workspace with the commit or the files from which the bottle started, or with the workspace of another
//! bottle.

use bottle_channel::Channel;
use bottle_host::Host;
use bottle_instance::record::Record;
use bottle_policy::names::Slug;

use super::root::compared;
use super::scratch::Scratch;
use super::{Beside, Compared, Content, Form, LeftOut, Repository, Root, Work};
use crate::failure::Failure;
use crate::notice::Notify;
use crate::report;
use crate::text::one_line;

/// The comparison of a bottle's workspace with its state at the start of the bottle.
pub struct Comparison<'a> {
    /// The comparisons of the roots that could be compared.
    pub roots: Vec<ComparedRoot<'a>>,
    /// Whether all roots could be compared.
    pub is_all: bool,
    /// The entries of the workspace outside of the roots. These entries were not compared.
    pub beside: Beside,
}

/// The comparison of one root.
pub struct ComparedRoot<'a> {
    /// The name of the directory with which the paths in the result begin. `None` if the paths are the same as in the
    /// user's repository.
    pub shown_in: Option<String>,
    /// The work of the bottle.
    pub work: Work<'a>,
    /// The result of the comparison.
    pub compared: Compared,
}

/// Returns each root with the name of the directory with which its paths in the result begin. The name is `None` if
/// there is only one root.
fn each_root(roots: Vec<Root>) -> impl Iterator<Item = (Root, Option<String>)> {
    let several = roots.len() > 1;
    roots.into_iter().map(move |root| {
        let directory = several.then(|| root.name.clone());
        (root, directory)
    })
}

async fn compare_root<'a>(
    host: &'a Host,
    (root, shown_in): (Root, Option<String>),
    channel: &Channel,
    form: Form,
    notify: Notify<'_>,
) -> Result<ComparedRoot<'a>, (Root, Failure)> {
    let comparing = async {
        let mut work = Work::open(host, root.clone(), channel, notify).await?;
        let compared = work.compare(channel, (form, shown_in.as_deref())).await?;
        Ok((work, compared))
    };
    match comparing.await {
        Ok((work, compared)) => Ok(ComparedRoot { shown_in, work, compared }),
        Err(error) => Err((root, error)),
    }
}

/// Compares the roots of a workspace with their state at the start of the bottle. `is_whole` says whether `roots` are
/// all roots of the workspace.
///
/// # Errors
/// When a root cannot be compared. A root without a repository is skipped if another root can be compared.
pub async fn compare<'a>(
    host: &'a Host,
    (record, channel): (&Record, &Channel),
    (roots, is_whole): (Vec<Root>, bool),
    form: Form,
    notify: Notify<'_>,
) -> Result<Comparison<'a>, Failure> {
    let mut all = Vec::new();
    for root in each_root(roots) {
        all.push(compare_root(host, root, channel, form, notify).await);
    }
    let count = all.len();
    let roots = compared(all, |_| true, notify)?;
    let is_all = roots.len() == count;
    let beside = if is_whole { Beside::find(channel, record).await? } else { Beside::default() };
    Ok(Comparison { roots, is_all, beside })
}

impl Comparison<'_> {
    /// Returns the output document about the differences of the bottle `slug`.
    pub fn document(self, slug: &Slug) -> report::Difference {
        let mut document = empty_document(slug, None);
        for ComparedRoot { shown_in, work, compared: Compared { diff, committed, .. } } in self.roots {
            let (text, cut) = diff.into_text();
            document.diff += &text;
            document.committed += &String::from_utf8_lossy(&committed.bytes);
            document.cut |= cut || committed.cut;
            let base = work.base.commit.map(|base| base.as_str().to_owned());
            match shown_in {
                Some(name) => document.directories.push(report::ComparedDirectory { name, base }),
                None => document.base = base,
            }
        }
        document
    }
}

/// The roots of two bottles' workspaces that are compared with each other.
pub struct Pairs(Vec<[Root; 2]>);

/// The comparison of two roots.
pub struct ComparedPair {
    /// The name of both roots.
    pub name: String,
    /// The name of the directory with which the paths in the result begin. `None` if there is only one pair.
    shown_in: Option<String>,
    /// The changes from the first root to the second.
    pub diff: Content,
    /// The files of each root that were not compared.
    pub left_out: [LeftOut; 2],
}

impl Pairs {
    /// Returns pairs of roots of two bottles that have the same name. With `directory`, returns only the pair of this
    /// directory.
    ///
    /// # Errors
    /// When the workspaces have different directories.
    pub fn of(host: &Host, records: [&Record; 2], directory: Option<&str>) -> Result<Self, Failure> {
        let [record, other] = records;
        let (roots, others) = (Root::of(host, record, directory)?, Root::of(host, other, directory)?);
        require_same_directories(&roots, &others)?;
        let pair = |root: Root| {
            let other = others.iter().find(|other| other.name == root.name)?.clone();
            Some([root, other])
        };
        Ok(Self(roots.into_iter().filter_map(pair).collect()))
    }

    /// Compares the roots of each pair.
    ///
    /// # Errors
    /// When a root cannot be read, or git fails.
    pub async fn compare(
        &self,
        host: &Host,
        [channel, other_channel]: [&Channel; 2],
        form: Form,
    ) -> Result<Vec<ComparedPair>, Failure> {
        let mut all = Vec::new();
        for [root, other] in &self.0 {
            let shown_in = (self.0.len() > 1).then(|| root.name.clone());
            let bottles = [(channel, root), (other_channel, other)];
            let (diff, left_out) = compare_two(host, bottles, (form, shown_in.as_deref())).await?;
            all.push(ComparedPair { name: root.name.clone(), shown_in, diff, left_out });
        }
        Ok(all)
    }
}

/// Returns the output document about the differences of two bottles.
pub fn document_of_pairs([slug, other]: [&Slug; 2], pairs: Vec<ComparedPair>) -> report::Difference {
    let mut document = empty_document(slug, Some(other));
    for ComparedPair { shown_in, diff, .. } in pairs {
        let (text, cut) = diff.into_text();
        document.diff += &text;
        document.cut |= cut;
        document.directories.extend(shown_in.map(|name| report::ComparedDirectory { name, base: None }));
    }
    document
}

fn empty_document(slug: &Slug, other: Option<&Slug>) -> report::Difference {
    report::Difference {
        slug: slug.to_string(),
        directories: Vec::new(),
        other: other.map(Slug::to_string),
        base: None,
        diff: String::new(),
        committed: String::new(),
        cut: false,
    }
}

/// Refuses workspaces with different directories.
fn require_same_directories(roots: &[Root], others: &[Root]) -> Result<(), Failure> {
    let has = |those: &[Root], root: &Root| those.iter().any(|other| other.name == root.name);
    if roots.iter().all(|root| has(others, root)) && others.iter().all(|other| has(roots, other)) {
        return Ok(());
    }
    let described = |roots: &[Root]| {
        let names: Vec<String> = roots.iter().map(|root| one_line(&root.name)).collect();
        let slug = roots.first().map_or("", |root| root.slug.as_str());
        match names.concat().as_str() {
            "" => format!("the workspace of {slug} is one directory"),
            _ => format!("the workspace of {slug} has the directories {}", names.join(", ")),
        }
    };
    let (one, other) = (described(roots), described(others));
    Err(Failure::state(format!("cannot compare the workspaces: {one}, and {other}"))
        .hint("`--directory DIRECTORY` compares one that both have"))
}

async fn compare_two(
    host: &Host,
    bottles: [(&Channel, &Root); 2],
    form: (Form, Option<&str>),
) -> Result<(Content, [LeftOut; 2]), Failure> {
    // The repository of the first root is used only if it is known to be the copied repository. Without a repository,
    // no ignore rules apply.
    let own = bottles[0].1.repository().ok().flatten();
    let head = own.as_ref().map(Repository::head).transpose()?.flatten();
    let scratch = Scratch::create(host, own.as_ref(), None)?;
    scratch.compare_two(bottles, own.as_ref(), head.as_ref(), form).await
}
