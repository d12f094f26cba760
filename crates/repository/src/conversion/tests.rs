//! Compares conversions with git. Each content is added to a repository, and checked out of it, with each attribute.
//! The output of git is the expected value.

use std::path::Path;
use std::process::Command;

use super::*;
use crate::attributes::Attributes;

fn git(top: &Path, arguments: &[&str]) -> Option<Vec<u8>> {
    let mut git = Command::new("git");
    git.current_dir(top).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    git.args(["-c", "user.name=a", "-c", "user.email=a@example.com"]).args(arguments);
    let output = git.output().expect("git");
    output.status.success().then_some(output.stdout)
}

fn utf16(text: &str, big: bool, mark: bool) -> Vec<u8> {
    Encoding::Utf16 { big, mark: if mark { Mark::Written } else { Mark::Forbidden } }
        .encode(text.as_bytes())
        .expect("encoded")
}

fn contents() -> Vec<Vec<u8>> {
    let mut contents: Vec<Vec<u8>> = [
        "",
        "x",
        "a\nb\n",
        "a\r\nb\r\n",
        "a\r\nb\n",
        "a\rb\r\n",
        "\r\r\n",
        "\n",
        "a\0b\r\n",
        "a\r\n\x1a",
        "\x01\x02\r\n",
        "$Id$\n",
        "$Id: abc $ x $Id$\r\n",
        "$Id: open\n$ $Id:$\n",
        "$Id: a$b$",
        "é\r\nü\n",
        "\x7f\r\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec();
    contents.push([&b"text ".repeat(100)[..], b"\x01\r\n"].concat());
    contents.push(b"\xff\xfe\xfd\r\n".to_vec());
    for (big, mark) in [(false, false), (true, false), (false, true), (true, true)] {
        contents.push(utf16("eins\r\nzwei é 𝄞\r\n", big, mark));
        contents.push(utf16("eins\nzwei\n", big, mark));
    }
    contents
}

/// The cases: the attributes of the file `f`, and the settings.
const CASES: [(&str, &[(&str, &str)]); 27] = [
    ("", &[]),
    ("text", &[]),
    ("-text", &[]),
    ("text=auto", &[]),
    ("text=auto eol=crlf", &[]),
    ("text=auto eol=lf", &[]),
    ("eol=crlf", &[]),
    ("text eol=crlf", &[]),
    ("text eol=lf", &[]),
    ("-text eol=crlf", &[]),
    ("crlf", &[]),
    ("-crlf", &[]),
    ("crlf=input", &[("core.autocrlf", "true")]),
    ("", &[("core.autocrlf", "true")]),
    ("", &[("core.autocrlf", "input")]),
    ("", &[("core.autocrlf", "false"), ("core.eol", "crlf")]),
    ("text", &[("core.eol", "crlf")]),
    ("text=auto", &[("core.autocrlf", "true")]),
    ("text=auto", &[("core.eol", "crlf")]),
    ("ident", &[]),
    ("ident text eol=crlf", &[]),
    ("working-tree-encoding=UTF-16LE", &[]),
    ("text working-tree-encoding=utf-16be eol=crlf", &[]),
    ("working-tree-encoding=UTF-16 ident", &[]),
    ("working-tree-encoding=UTF-16LE-BOM text", &[]),
    ("working-tree-encoding=ISO-8859-1", &[]),
    ("filter=absent", &[]),
];

#[test]
fn agrees_with_git() {
    for (line, settings) in CASES {
        let top = tempfile::tempdir().expect("a directory");
        let path = |name: &str| top.path().join(name);
        git(top.path(), &["init", "-q"]).expect("made");
        let mut options = Vec::new();
        for (key, value) in settings {
            git(top.path(), &["config", key, value]).expect("set");
            options.push(format!("{key}={value}"));
        }
        let text = format!("f {line}\n");
        std::fs::write(path(".git/info/attributes"), &text).expect("written");
        let mut attributes = Attributes::default();
        attributes.add(b"", text.as_bytes()).expect("bounded");
        let config = Config::parse(&std::fs::read(path(".git/config")).expect("read")).expect("parsed");
        let mut known = Settings::default();
        known.add(&config);
        let conversion = Conversion::of(&attributes.of(b"f"), &known);
        let guesses = matches!(conversion.lines, Lines::Auto(_));
        let before = [None, Some(&b"a\r\nb\r\n"[..])];
        for before in before.into_iter().take(if guesses { 2 } else { 1 }) {
            for content in contents() {
                let case =
                    format!("{line:?} {settings:?} {before:?} {:?}", String::from_utf8_lossy(&content));
                let _ = std::fs::remove_file(path(".git/index"));
                if let Some(before) = before {
                    std::fs::write(path("raw"), before).expect("written");
                    let id = git(top.path(), &["hash-object", "-w", "--no-filters", "raw"]).expect("an id");
                    let id = String::from_utf8(id).expect("text");
                    let entry = format!("100644,{},f", id.trim());
                    git(top.path(), &["update-index", "--add", "--cacheinfo", &entry]).expect("added");
                }
                std::fs::write(path("f"), &content).expect("written");
                let added = git(top.path(), &["add", "f"])
                    .map(|_| git(top.path(), &["cat-file", "blob", ":f"]).expect("a blob"));
                let cleaned = conversion.clean(&content, before).map(Cow::into_owned);
                let Some(added) = added else {
                    assert_eq!(cleaned, Err(Unconverted::Content), "{case}");
                    continue;
                };
                assert_eq!(cleaned.as_ref(), Ok(&added), "clean {case}");
                let id =
                    String::from_utf8(git(top.path(), &["rev-parse", ":f"]).expect("an id")).expect("text");
                std::fs::remove_file(path("f")).expect("removed");
                git(top.path(), &["checkout", "--", "f"]).expect("checked out");
                let expected = std::fs::read(path("f")).expect("read");
                let smudged = conversion.smudge(&added, id.trim()).map(Cow::into_owned);
                assert_eq!(smudged, Ok(expected), "smudge {case}");
            }
        }
    }
}

#[test]
fn finds_text_that_a_keyword_hides() {
    let mut attributes = Attributes::default();
    attributes.add(b"", b"f ident\n").expect("bounded");
    let [ident, plain] =
        ["f", "g"].map(|path| Conversion::of(&attributes.of(path.as_bytes()), &Settings::default()));
    let id = "0123456789abcdef0123456789abcdef01234567";
    for (text, hides) in [
        ("$Id$ x".to_owned(), false),
        ("$Id:$".to_owned(), false),
        (format!("$Id: {id} $"), false),
        (format!("$Id: {id} $ $Id: evil $"), true),
        ("$Id: evil$".to_owned(), true),
        ("$Id: open\n$".to_owned(), false),
    ] {
        assert_eq!(
            (ident.hides_text(text.as_bytes()), plain.hides_text(text.as_bytes())),
            (hides, false),
            "{text}"
        );
    }
}

#[test]
fn knows_pointers_and_runs_no_program() {
    let mut settings = Settings::default();
    settings.add_listed(
        b"filter.lfs.process\ngit-lfs filter-process\0filter.crypt.clean\ncrypt\0filter.none.clean\n\0",
    );
    let of = |line: &str| {
        let mut attributes = Attributes::default();
        attributes.add(b"", format!("f {line}\n").as_bytes()).expect("bounded");
        Conversion::of(&attributes.of(b"f"), &settings)
    };
    let lfs = of("filter=lfs -text");
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:\
        ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\nsize 3\n";
    assert_eq!(lfs.clean(b"abc", None).as_deref(), Ok(pointer.as_bytes()));
    assert_eq!(lfs.clean(pointer.as_bytes(), None).as_deref(), Ok(pointer.as_bytes()));
    assert_eq!(lfs.clean(b"", None).as_deref(), Ok(&b""[..]));
    assert!(lfs.smudge(pointer.as_bytes(), "").is_err());
    let parsed = Pointer::parse(pointer.as_bytes()).expect("a pointer");
    assert_eq!((parsed.size, Pointer::of(&mut &b"abc"[..]).expect("read")), (3, parsed.clone()));
    for other in [
        "",
        "version https://git-lfs.github.com/spec/v1\n",
        &pointer.replace("ba78", "BA78"),
        &"x".repeat(2000),
    ] {
        assert_eq!(Pointer::parse(other.as_bytes()), None, "{other}");
    }
    assert_eq!(of("filter=crypt").clean(b"abc", None), Err(Unconverted::Program("crypt".to_owned())));
    assert!(
        of("filter=none").is_identity() && of("filter=other").is_identity() && of("filter").is_identity()
    );
    assert!(matches!(of("working-tree-encoding=SHIFT-JIS").clean(b"a", None), Err(Unconverted::Encoding(_))));
}
