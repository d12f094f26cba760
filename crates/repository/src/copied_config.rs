//! Generates the git configuration for a copy of a repository, which replaces the repository's own configuration.
//!
//! The repository's configuration names programs and paths of this machine, such as hooks, signing keys and editors. In
//! a bottle these programs and paths are missing, so an agent could not commit. The copy keeps the settings that say
//! how files and commits are stored, the remotes, and the branches. Filters that run a program are left out: git then
//! reads and writes the files unconverted.

use crate::config::{Config, Entry};

/// The generated configuration, and the settings that it leaves out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CopiedConfig {
    /// The text of the file.
    pub text: Vec<u8>,
    /// The names of the settings that were left out and that change what git does, such as `commit.gpgsign`. A filter
    /// or another driver is listed only once, such as `filter.git-crypt`.
    pub left_out: Vec<String>,
}

/// The kind of the copied git directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// The git directory `.git` of a working tree.
    Tree,
    /// A git directory with linked worktrees but without a working tree of its own.
    Bare,
    /// The git directory of a submodule inside the git directory of its superproject. It names its working tree by a
    /// relative path.
    Submodule,
}

/// Which variables of a section are kept.
enum Kept {
    All,
    These(&'static [&'static str]),
    /// All variables except these, which name programs or paths of this machine.
    Except(&'static [&'static str]),
}

/// The sections with variables that are kept (git-config(1)). `is_kept` has further rules for some variables of `core`,
/// `extensions` and `filter`.
const SECTIONS: [(&str, Kept); 31] = [
    ("advice", Kept::All),
    ("annex", Kept::These(&["uuid", "version"])),
    ("author", Kept::These(&["email", "name"])),
    ("branch", Kept::All),
    ("commit", Kept::These(&["cleanup", "verbose"])),
    ("committer", Kept::These(&["email", "name"])),
    (
        "core",
        Kept::These(&[
            "abbrev",
            "autocrlf",
            "bigfilethreshold",
            "checkroundtripencoding",
            "checkstat",
            "commentchar",
            "commentstring",
            "compression",
            "eol",
            "filemode",
            "ignorecase",
            "logallrefupdates",
            "loosecompression",
            "precomposeunicode",
            "protecthfs",
            "protectntfs",
            "quotepath",
            "repositoryformatversion",
            "safecrlf",
            "sharedrepository",
            "sparsecheckout",
            "sparsecheckoutcone",
            "splitindex",
            "symlinks",
            "trustctime",
            "warnambiguousrefs",
            "whitespace",
        ]),
    ),
    ("diff", Kept::Except(&["command", "external", "guitool", "orderfile", "textconv", "tool"])),
    ("extensions", Kept::Except(&["relativeworktrees"])),
    ("feature", Kept::All),
    ("fetch", Kept::Except(&["bundleuri"])),
    ("filter", Kept::These(&[])),
    ("gc", Kept::Except(&["recentobjectshook"])),
    ("i18n", Kept::All),
    ("index", Kept::All),
    ("lfs", Kept::Except(&["args", "path", "standalonetransferagent", "storage"])),
    ("log", Kept::Except(&["mailmap", "showsignature"])),
    ("merge", Kept::Except(&["driver", "guitool", "tool", "verifysignatures"])),
    ("notes", Kept::All),
    ("pack", Kept::Except(&["packsizelimit"])),
    ("pull", Kept::All),
    ("push", Kept::Except(&["gpgsign"])),
    ("rebase", Kept::All),
    (
        "remote",
        Kept::These(&[
            "fetch",
            "followremotehead",
            "mirror",
            "partialclonefilter",
            "promisor",
            "prune",
            "prunetags",
            "push",
            "pushurl",
            "skipdefaultupdate",
            "skipfetchall",
            "tagopt",
            "url",
        ]),
    ),
    ("rerere", Kept::All),
    ("sparse", Kept::All),
    ("status", Kept::All),
    ("submodule", Kept::All),
    ("svn-remote", Kept::All),
    ("tag", Kept::These(&["sort"])),
    ("user", Kept::These(&["email", "name", "useconfigonly"])),
];

/// Sections whose subsections each name a driver, which is a program. Without the driver, git reads the files
/// unconverted.
const DRIVERS: [&[u8]; 3] = [b"diff", b"filter", b"merge"];

/// Sections that have no effect on the work of an agent. They are left out without a note.
const SILENT: [&[u8]; 7] = [b"color", b"column", b"gui", b"gitk", b"maintenance", b"mergetool", b"difftool"];

/// The filter that the copy keeps. Without it, files of Git LFS would be committed with their whole content.
const LFS: &[u8] = b"lfs";

impl CopiedConfig {
    /// Generates the configuration for the copy of a repository with the configuration `config`. `has_filters` says
    /// whether attributes name filters, because the programs of these filters may be set in another configuration file.
    #[must_use]
    pub fn of(config: &Config, of: Of, mut has_filters: bool) -> Self {
        let mut copied = Self::default();
        let mut section = None;
        for entry in config.entries() {
            if !is_kept(entry, of) {
                has_filters |= *entry.section == *b"filter";
                copied.leave_out(entry);
                continue;
            }
            let name = (&entry.section, &entry.subsection);
            if section != Some(name) {
                copied.begin(&entry.section, entry.subsection.as_deref());
                section = Some(name);
            }
            let value = entry.value.as_deref().map(|value| without_login(entry, value));
            copied.set(&entry.name, value.as_deref());
        }
        if of == Of::Bare {
            copied.begin(b"core", None);
            copied.set(b"bare", Some(b"true"));
        }
        if has_filters {
            // The output of a filter differs from the stored content. If git read such a file, it would report the file
            // as changed. Git therefore has to recognise an unchanged file by the properties that a copy keeps: its
            // length and its modification time.
            copied.begin(b"core", None);
            copied.set(b"checkStat", Some(b"minimal"));
            copied.set(b"trustCTime", Some(b"false"));
        }
        copied
    }

    fn leave_out(&mut self, entry: &Entry) {
        let is_default = *entry.section == *b"core" && matches!(entry.name.as_slice(), b"bare" | b"worktree");
        if is_default || *entry.section == *b"extensions" || SILENT.contains(&&*entry.section) {
            return;
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut name = text(&entry.section);
        let is_driver = entry.subsection.is_some() && DRIVERS.contains(&&*entry.section);
        // The subsection of other settings is not listed, because it can be an address with a password.
        if is_driver {
            name = format!("{name}.{}", text(entry.subsection.as_deref().unwrap_or_default()));
        } else {
            name = format!("{name}.{}", text(&entry.name));
        }
        if !self.left_out.contains(&name) {
            self.left_out.push(name);
        }
    }

    fn begin(&mut self, section: &[u8], subsection: Option<&[u8]>) {
        self.text.push(b'[');
        self.text.extend(section);
        if let Some(subsection) = subsection {
            self.text.push(b' ');
            self.quoted(subsection);
        }
        self.text.extend(b"]\n");
    }

    fn set(&mut self, name: &[u8], value: Option<&[u8]>) {
        self.text.push(b'\t');
        self.text.extend(name);
        if let Some(value) = value {
            self.text.extend(b" = ");
            self.quoted(value);
        }
        self.text.push(b'\n');
    }

    fn quoted(&mut self, text: &[u8]) {
        self.text.push(b'"');
        for byte in text {
            match byte {
                b'\n' => self.text.extend(b"\\n"),
                b'"' | b'\\' => self.text.extend([b'\\', *byte]),
                byte => self.text.push(*byte),
            }
        }
        self.text.push(b'"');
    }
}

fn is_kept(entry: &Entry, of: Of) -> bool {
    let Entry { section, subsection, name, value } = entry;
    let value = value.as_deref().unwrap_or_default();
    match (&**section, name.as_slice()) {
        // References in the tables of a submodule are not converted to files.
        (b"extensions", b"refstorage") => of == Of::Submodule,
        (b"filter", _) => subsection.as_deref() == Some(LFS),
        // An absolute path of this machine does not exist in a copy.
        (b"core", b"worktree") => of == Of::Submodule && !value.starts_with(b"/"),
        (b"lfs", _) if subsection.as_deref().is_some_and(|name| name.starts_with(b"customtransfer")) => false,
        // A path of this machine cannot be a remote of a copy.
        (b"remote", b"url" | b"pushurl") => !is_local(value),
        // A value of the form `!command` runs a program.
        (b"submodule", b"update") => !value.starts_with(b"!"),
        _ => SECTIONS.iter().any(|(known, kept)| {
            *known.as_bytes() == **section
                && match kept {
                    Kept::All => true,
                    Kept::These(names) => names.iter().any(|known| known.as_bytes() == name.as_slice()),
                    Kept::Except(names) => !names.iter().any(|known| known.as_bytes() == name.as_slice()),
                }
        }),
    }
}

/// Whether an address of a repository is an absolute path of this machine.
fn is_local(address: &[u8]) -> bool {
    [&b"/"[..], b"~", b"file:"].iter().any(|begin| address.starts_with(begin))
}

/// Returns the address of a repository without the user name and the password. The git gate has the credentials, and
/// finds its repositories by their addresses without credentials.
fn without_login<'a>(entry: &Entry, value: &'a [u8]) -> std::borrow::Cow<'a, [u8]> {
    let has_address = matches!(&*entry.section, b"remote" | b"submodule" | b"svn-remote")
        && matches!(entry.name.as_slice(), b"url" | b"pushurl");
    let lower = value.to_ascii_lowercase();
    let scheme = [&b"https://"[..], b"http://"].into_iter().find(|scheme| lower.starts_with(scheme));
    let Some(scheme) = scheme.filter(|_| has_address) else { return value.into() };
    let (scheme, rest) = value.split_at(scheme.len());
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?' | b'#')).unwrap_or(rest.len());
    match rest[..end].iter().rposition(|byte| *byte == b'@') {
        Some(at) => [scheme, &rest[at + 1..]].concat().into(),
        None => value.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copied(text: &str, of: Of) -> (String, Vec<String>) {
        let copied = CopiedConfig::of(&Config::parse(text.as_bytes()).expect("parsed"), of, false);
        (String::from_utf8(copied.text).expect("UTF-8"), copied.left_out)
    }

    #[test]
    fn keeps_what_git_needs_and_names_the_rest() {
        for (text, kept, left_out) in [
            ("[core]\n\tbare = true\n\tworktree = ../x\n", "", &[][..]),
            (
                "[core]\nrepositoryformatversion = 1\neol=lf\n[extensions]\nobjectFormat = sha256\nrefStorage = reftable\n",
                "[core]\n\trepositoryformatversion = \"1\"\n\teol = \"lf\"\n[extensions]\n\tobjectformat = \"sha256\"\n",
                &[],
            ),
            (
                "[core]\nhooksPath = .husky/_\neditor = vim\nfsmonitor = /x/watch\nsshCommand = ssh -i key\n",
                "",
                &["core.hookspath", "core.editor", "core.fsmonitor", "core.sshcommand"],
            ),
            (
                "[commit]\ngpgsign\ntemplate = ~/t\n[tag]\ngpgsign = true\n[gpg]\nformat = ssh\n[gpg \"ssh\"]\nprogram = x\n\
                 [user]\nname = A\nsigningkey = k\n",
                "[user]\n\tname = \"A\"\n",
                &[
                    "commit.gpgsign",
                    "commit.template",
                    "tag.gpgsign",
                    "gpg.format",
                    "gpg.program",
                    "user.signingkey",
                ],
            ),
            (
                "[credential \"https://u:p@host\"]\nhelper = store\n[url \"git@h:\"]\ninsteadOf = https://h/\n[include]\npath = x\n\
                 [http \"https://u:p@h\"]\nproxy = x\n",
                "",
                &["credential.helper", "url.insteadof", "include.path", "http.proxy"],
            ),
            (
                "[filter \"lfs\"]\nclean = git-lfs clean -- %f\nrequired\n[lfs]\nrepositoryformatversion = 0\n\
                 [diff \"x\"]\nxfuncname = f\ntextconv = run\n[merge \"m\"]\ndriver = run\nname = n\n",
                "[filter \"lfs\"]\n\tclean = \"git-lfs clean -- %f\"\n\trequired\n[lfs]\n\trepositoryformatversion = \"0\"\n\
                 [diff \"x\"]\n\txfuncname = \"f\"\n[merge \"m\"]\n\tname = \"n\"\n",
                &["diff.x", "merge.m"],
            ),
            (
                "[remote \"a\"]\nurl = /home/x/r\nfetch = f\n[remote \"b\"]\nurl = file:///r\n[remote \"c\"]\nurl = ../r\n",
                "[remote \"a\"]\n\tfetch = \"f\"\n[remote \"c\"]\n\turl = \"../r\"\n",
                &["remote.url"],
            ),
            ("[color]\nui = true\n[alias]\nst = !x\n", "", &["alias.st"]),
        ] {
            let left_out: Vec<_> = left_out.iter().map(ToString::to_string).collect();
            assert_eq!(copied(text, Of::Tree), (kept.to_owned(), left_out), "{text}");
        }
    }

    #[test]
    fn without_a_filter_a_file_is_unchanged_while_its_time_is() {
        let (kept, left_out) = copied("[filter \"git-crypt\"]\nclean = a\nsmudge = b\nrequired\n", Of::Tree);
        assert_eq!(kept, "[core]\n\tcheckStat = \"minimal\"\n\ttrustCTime = \"false\"\n");
        assert_eq!(left_out, ["filter.git-crypt"]);
    }

    #[test]
    fn a_submodule_has_its_working_tree_and_a_bare_repository_none() {
        let text = "[core]\nbare = false\nworktree = ../../../lib\n";
        assert_eq!(copied(text, Of::Submodule).0, "[core]\n\tworktree = \"../../../lib\"\n");
        assert_eq!(copied("[core]\nworktree = /home/a/lib\n", Of::Submodule).0, "");
        assert_eq!(copied(text, Of::Bare).0, "[core]\n\tbare = \"true\"\n");
    }

    #[test]
    fn addresses_lose_their_login() {
        for (url, kept) in [
            ("https://org@dev.azure.com/org/p/_git/r", "https://dev.azure.com/org/p/_git/r"),
            ("HTTPS://u:p%40@host:8443/o/r.git", "HTTPS://host:8443/o/r.git"),
            ("https://a@b@host/o/r@2", "https://host/o/r@2"),
            ("https://host/o/@r", "https://host/o/@r"),
            ("ssh://git@host:7999/o/r.git", "ssh://git@host:7999/o/r.git"),
            ("git@host:o/r", "git@host:o/r"),
        ] {
            let (text, _) = copied(&format!("[remote \"o\"]\nurl = {url}\n"), Of::Tree);
            assert_eq!(text, format!("[remote \"o\"]\n\turl = \"{kept}\"\n"));
        }
        let (text, _) = copied("[branch \"x\"]\nremote = https://u@h/r\n", Of::Tree);
        assert!(text.contains("u@h"), "only addresses of remotes: {text}");
    }

    /// Git reads the same values from the copied configuration as from the original one.
    #[test]
    fn git_reads_the_same_values() {
        let place = tempfile::tempdir().expect("a directory");
        let text = "[branch \"a\\\"b\\\\c\"]\n\tdescription = \"x \\\"y\\\" \\\\ z # ; \\t\\n end \"\n\trebase\n[core]\n\teol = lf # note\n";
        let listed = |text: &[u8]| {
            let path = place.path().join("config");
            std::fs::write(&path, text).expect("written");
            let mut git = std::process::Command::new("git");
            let output = git.args(["config", "--null", "--list", "--file"]).arg(path).output().expect("git");
            assert!(output.status.success());
            output.stdout
        };
        let copied = CopiedConfig::of(&Config::parse(text.as_bytes()).expect("parsed"), Of::Tree, false);
        assert_eq!(listed(&copied.text), listed(text.as_bytes()));
    }
}
