use super::*;

/// A user who gives the same answer to every prompt. The prompts are recorded.
struct User {
    answer: Option<&'static str>,
    questions: Vec<String>,
}

impl Ask for User {
    fn secret(&mut self, question: &str) -> io::Result<Option<Secret>> {
        self.questions.push(question.to_owned());
        Ok(self.answer.map(|answer| Secret::new(answer.to_owned())))
    }
}

fn host(env: &[(&str, &str)], home: &Path) -> Host {
    Host {
        env: env.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
        cwd: home.to_owned(),
        home: home.join(".bottle"),
        user_home: home.to_owned(),
        runtime: home.join("run"),
        program: "/bin/bottle".into(),
    }
}

fn need(id: &str, source: SecretSource) -> SecretNeed {
    SecretNeed { id: id.to_owned(), source, purpose: format!("route {id}"), form: None }
}

fn command(argv: &[&str]) -> SecretSource {
    SecretSource::Command(argv.iter().map(|word| (*word).to_owned()).collect())
}

fn value<'a>(secrets: &'a Secrets, id: &str) -> &'a str {
    secrets.values[id].0.expose()
}

async fn problem(host: &Host, source: SecretSource) -> String {
    let error = resolve(host, &[need("x", source)], None).await.expect_err("an error");
    bottle_host::causes::one_line(&error)
}

#[tokio::test]
async fn resolves_variables_files_and_commands_without_the_trailing_line_break() {
    let home = tempfile::tempdir().expect("directory");
    std::fs::write(home.path().join("key"), "from-a-file\r\n").expect("write");
    std::fs::set_permissions(home.path().join("key"), std::fs::Permissions::from_mode(0o600)).expect("mode");
    let host = host(&[("TOKEN", "from-env"), ("PATH", "/usr/bin:/bin")], home.path());
    let needs = [
        need("a", SecretSource::Env("TOKEN".into())),
        need("b", SecretSource::File("~/key".into())),
        need("c", command(&["printf", "%s\\n\\n", "$HOME two"])),
    ];
    let secrets = resolve(&host, &needs, None).await.expect("secrets");
    assert_eq!(value(&secrets, "a"), "from-env");
    assert_eq!(value(&secrets, "b"), "from-a-file");
    assert_eq!(value(&secrets, "c"), "$HOME two\n", "no shell, and one line break only");
    assert_eq!(secrets.warnings, [] as [String; 0]);
    assert!(!format!("{secrets:?}").contains("from-"));
}

#[tokio::test]
async fn warns_about_a_file_that_others_can_read() {
    let home = tempfile::tempdir().expect("directory");
    let path = home.path().join("key");
    std::fs::write(&path, "v").expect("write");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("mode");
    let needs = [need("a", SecretSource::File(path))];
    let secrets = resolve(&host(&[], home.path()), &needs, None).await.expect("secrets");
    assert!(secrets.warnings[0].contains("chmod 600"), "{:?}", secrets.warnings);
}

#[tokio::test]
async fn reports_all_missing_secrets_with_every_way_to_set_them() {
    let home = tempfile::tempdir().expect("directory");
    let needs = [
        need("a", SecretSource::Env("FIRST".into())),
        need("b", SecretSource::Env("EMPTY".into())),
        need("c", SecretSource::Prompt("the PIN".into())),
    ];
    let error = resolve(&host(&[("EMPTY", "")], home.path()), &needs, None).await.expect_err("missing");
    let message = error.to_string();
    for word in ["FIRST is not set (for route a)", "EMPTY", "the PIN"] {
        assert!(message.contains(word), "{message}");
    }
    let hint = error.hint().expect("a hint");
    for word in ["export FIRST=", "terminal", "file:", "cmd:"] {
        assert!(hint.contains(word), "{hint}");
    }
}

#[tokio::test]
async fn prompts_once_for_each_source_and_accepts_a_cancel() {
    let home = tempfile::tempdir().expect("directory");
    let host = host(&[], home.path());
    let needs = [need("a", SecretSource::Env("T".into())), need("b", SecretSource::Env("T".into()))];
    let mut user = User { answer: Some("typed"), questions: Vec::new() };
    let secrets = resolve(&host, &needs, Some(&mut user)).await.expect("secrets");
    assert_eq!((value(&secrets, "a"), value(&secrets, "b")), ("typed", "typed"));
    assert_eq!(user.questions.len(), 1);
    assert!(user.questions[0].starts_with("T (route a); or file:PATH"), "{:?}", user.questions);
    for answer in [None, Some("")] {
        let mut user = User { answer, questions: Vec::new() };
        let error = resolve(&host, &needs, Some(&mut user)).await.expect_err("cancelled");
        assert!(matches!(error, SecretError::Cancelled(_)));
    }
}

#[tokio::test]
async fn refuses_unusable_secrets_without_showing_them() {
    let home = tempfile::tempdir().expect("directory");
    let host = host(&[("PATH", "/usr/bin:/bin")], home.path());
    let large = home.path().join("large");
    std::fs::write(&large, "x".repeat(SECRET_MAX + 1)).expect("write");
    rustix::fs::mkfifoat(rustix::fs::CWD, home.path().join("pipe"), rustix::fs::Mode::RUSR).expect("pipe");
    for (source, word) in [
        (SecretSource::File(large), "more than 65536 bytes"),
        (SecretSource::File(home.path().join("pipe")), "not a regular file"),
        (SecretSource::File(home.path().join("absent")), "No such file"),
        (SecretSource::File("/dev/zero".into()), "not a regular file"),
        (command(&["cat", "/dev/zero"]), "more than 65536 bytes"),
        (command(&["printf", "hush; exit 3\\377"]), "not UTF-8"),
        (command(&["sh", "-c", "echo hush; exit 3"]), "exit status: 3"),
        (command(&["true"]), "unusable value: empty"),
        (command(&["no-such-program-here"]), "cannot be started"),
        (command(&[]), "the command is empty"),
    ] {
        let message = problem(&host, source).await;
        assert!(message.contains(word), "{message}");
        assert!(!message.contains("hush"), "{message}");
    }
}

#[tokio::test]
async fn saves_a_typed_reference_for_later_launches() {
    let home = tempfile::tempdir().expect("directory");
    let host = host(&[("PATH", "/usr/bin:/bin")], home.path());
    let needs = [need("a", SecretSource::Env("T".into())), need("b", SecretSource::Env("U".into()))];
    let mut user = User { answer: Some("cmd:printf 's3cret value'"), questions: Vec::new() };
    let secrets = resolve(&host, &needs, Some(&mut user)).await.expect("secrets");
    assert_eq!(value(&secrets, "a"), "s3cret value");
    assert!(secrets.warnings[0].contains("the reference for T is saved"), "{:?}", secrets.warnings);
    let file = home.path().join(".bottle/secrets.yml");
    let text = std::fs::read_to_string(&file).expect("saved");
    assert!(text.contains("T: cmd:printf") && text.contains("U: cmd:printf"), "{text}");
    assert_eq!(file.metadata().expect("there").permissions().mode() & 0o777, 0o600);

    // No prompt is needed. A variable that is set takes precedence over its saved reference.
    let secrets = resolve(&host, &needs, None).await.expect("secrets");
    assert_eq!(value(&secrets, "b"), "s3cret value");
    let host =
        Host { env: [("T".into(), "set".into()), ("PATH".into(), "/usr/bin:/bin".into())].into(), ..host };
    let secrets = resolve(&host, &needs, None).await.expect("secrets");
    assert_eq!((value(&secrets, "a"), value(&secrets, "b")), ("set", "s3cret value"));
}

#[tokio::test]
async fn does_not_save_an_unusable_reference() {
    let home = tempfile::tempdir().expect("directory");
    let host = host(&[], home.path());
    for typed in ["file:/no/such/file", "file:relative", "cmd:", "cmd:no-such-program-here"] {
        let mut user = User { answer: Some(typed), questions: Vec::new() };
        let needs = [need("a", SecretSource::Env("T".into()))];
        let error = resolve(&host, &needs, Some(&mut user)).await.expect_err(typed);
        assert!(matches!(error, SecretError::Unreadable { .. }), "{typed}: {error}");
        assert!(!home.path().join(".bottle/secrets.yml").exists(), "{typed}");
    }
}

#[tokio::test]
async fn names_an_invalid_references_file_without_its_values() {
    let home = tempfile::tempdir().expect("directory");
    let host = host(&[], home.path());
    std::fs::create_dir(home.path().join(".bottle")).expect("made");
    for text in [
        "T: hunter2-hunter2\n",
        "T: env:U\n",
        "- hunter2-hunter2\n",
        "T: {a: hunter2-hunter2}\n",
        "T: 'file:hunter2-hunter2'\n",
    ] {
        std::fs::write(home.path().join(".bottle/secrets.yml"), text).expect("written");
        let message = problem(&host, SecretSource::Env("T".into())).await;
        assert!(message.contains("secrets.yml"), "{text}: {message}");
        assert!(!message.contains("hunter2"), "{text}: {message}");
    }
}
