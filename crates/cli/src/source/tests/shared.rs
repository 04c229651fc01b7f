//! The cache shared with Hugging Face's libraries, and split sets in it.

use super::super::{list, remove};
use super::*;
use std::fs;

const FILE: &str = "d/m-Q4_0.gguf";
const PARTS: [&str; 3] =
    ["q8/m-Q8_0-00001-of-00003.gguf", "q8/m-Q8_0-00002-of-00003.gguf", "q8/m-Q8_0-00003-of-00003.gguf"];

/// Counts the transfers that are shown and keeps the last state of the bar.
#[derive(Default)]
struct Bar(Mutex<Vec<(Option<u64>, u64)>>);

impl Reporter for Bar {
    fn note(&self, _: &str) {}
    fn begin(&self, _: &str, total: Option<u64>, done: u64) {
        self.0.lock().unwrap().push((total, done));
    }
    fn at(&self, done: u64) {
        self.0.lock().unwrap().last_mut().unwrap().1 = done;
    }
    fn end(&self, done: u64, ok: bool) {
        assert!(ok);
        self.at(done);
    }
}

fn repo(bench: &Bench) -> PathBuf {
    bench.opts.hub_cache.clone().unwrap().join("models--o--r")
}

fn split_files() -> Vec<(&'static str, Vec<u8>)> {
    PARTS.iter().enumerate().map(|(i, name)| (*name, model(50_000 + i))).collect()
}

#[test]
fn a_download_lies_as_the_hubs_libraries_lay_it() {
    let bytes = model(5000);
    let server = Hub::of(&[(FILE, bytes.clone())]).start();
    let bench = Bench::new(&server.url());
    let path = bench.resolve(&parse("hf:o/r")).unwrap();
    let repo = repo(&bench);
    assert_eq!(path, repo.join("snapshots").join(COMMITS[0]).join(FILE));
    assert_eq!(fs::read_link(&path).unwrap(), PathBuf::from(format!("../../../blobs/{}", sha256(&bytes))));
    assert_eq!(fs::read(repo.join("blobs").join(sha256(&bytes))).unwrap(), bytes);
    assert_eq!(fs::read_to_string(repo.join("refs/main")).unwrap(), COMMITS[0]);
    assert_eq!(fs::read_dir(repo.join("blobs")).unwrap().count(), 1, "nothing temporary stays");
    // Another revision with the same file is only linked.
    let before = server.seen().len();
    let other = bench.resolve(&parse("hf:o/r@v1/d/m-Q4_0.gguf")).unwrap();
    assert_eq!(other, repo.join("snapshots").join(COMMITS[1]).join(FILE));
    assert_eq!((fs::read(&other).unwrap(), server.seen().len()), (bytes, before + 1));
    assert_eq!(fs::read_to_string(repo.join("refs/v1")).unwrap(), COMMITS[1]);
}

#[test]
fn files_of_other_programs_are_found_offline() {
    let mut bench = Bench::new("http://unused");
    bench.opts.offline = true;
    let repo = repo(&bench);
    let snapshot = repo.join("snapshots").join(COMMITS[0]);
    for dir in ["blobs", "refs", &format!("snapshots/{}", COMMITS[0])] {
        fs::create_dir_all(repo.join(dir)).unwrap();
    }
    fs::write(repo.join("refs/main"), COMMITS[0]).unwrap();
    // One as a link, one as systems without links have it, one whose blob is gone.
    fs::write(repo.join("blobs/abc"), model(100)).unwrap();
    std::os::unix::fs::symlink("../../blobs/abc", snapshot.join("m-Q4_K_M.gguf")).unwrap();
    fs::write(snapshot.join("m-Q8_0.gguf"), model(200)).unwrap();
    std::os::unix::fs::symlink("../../blobs/gone", snapshot.join("m-Q6_K.gguf")).unwrap();
    assert_eq!(bench.resolve(&parse("hf:o/r")).unwrap(), snapshot.join("m-Q4_K_M.gguf"));
    assert_eq!(bench.resolve(&parse("hf:o/r:Q8_0")).unwrap(), snapshot.join("m-Q8_0.gguf"));
    assert!(matches!(bench.resolve(&parse("hf:o/r:Q6_K")), Err(SourceError::Offline { .. })));
    let names: Vec<String> = list(&bench.opts).unwrap().into_iter().map(|m| m.name).collect();
    assert_eq!(names, ["hf:o/r/m-Q4_K_M.gguf", "hf:o/r/m-Q8_0.gguf"]);
    // A catalogue model that lies there is taken too, if it is the right one.
    let bytes = model(3000);
    let blobs = bench.opts.hub_cache.clone().unwrap().join("models--owner--repo/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(sha256(&bytes)), &bytes).unwrap();
    assert_eq!(bench.resolve(&entry(&bytes, vec![HF])).unwrap(), blobs.join(sha256(&bytes)));
    fs::write(blobs.join(sha256(&bytes)), model(3000).iter().map(|b| !b).collect::<Vec<u8>>()).unwrap();
    assert!(bench.resolve(&entry(&bytes, vec![HF])).is_err());
}

#[test]
fn a_split_set_is_one_model() {
    let files = split_files();
    let server = Hub { drops: Some(PARTS[1]), ..Hub::of(&files) }.start();
    let mut bench = Bench::new(&server.url());
    let bar = Arc::new(Bar::default());
    bench.opts.reporter = Arc::clone(&bar) as _;
    let path = bench.resolve(&parse("hf:o/r:Q8_0")).unwrap();
    assert!(path.ends_with(PARTS[0]));
    let root = path.parent().unwrap().parent().unwrap();
    for (name, bytes) in &files {
        assert_eq!(&fs::read(root.join(name)).unwrap(), bytes);
    }
    let ranges =
        server.seen().iter().filter(|r| r.path.starts_with("/cdn") && r.range() == Some(25_000)).count();
    assert_eq!(ranges, 1, "the broken part was resumed");
    assert_eq!(*bar.0.lock().unwrap(), [(Some(150_003), 150_003)], "one bar over the whole");
    // Any part stands for the set; so does the quantisation.
    bench.opts.offline = true;
    for again in ["hf:o/r", "hf:o/r:Q8_0", "hf:o/r/q8/m-Q8_0-00002-of-00003.gguf"] {
        assert_eq!(bench.resolve(&parse(again)).unwrap(), path, "{again}");
    }
    let models = list(&bench.opts).unwrap();
    assert_eq!((models.len(), models[0].files, models[0].size), (1, 3, 150_003));
    assert_eq!(models[0].name, format!("hf:o/r/{}", PARTS[0]));
    let gone = remove("hf:o/r:Q8_0", &bench.opts).unwrap();
    assert_eq!(gone.len(), 6, "{gone:?}");
    bench.assert_nothing_final();
    assert!(!repo(&bench).exists(), "nothing is left");
}

#[test]
fn a_part_of_a_set_names_the_set_and_mirrors_deliver_it_too() {
    let files = split_files();
    for plain in [false, true] {
        let server = Hub { plain, ..Hub::of(&files) }.start();
        let bench = Bench::new(&server.url());
        let path = bench.resolve(&parse(&format!("hf:o/r/{}", PARTS[2]))).unwrap();
        assert_eq!(fs::read(&path).unwrap(), files[0].1);
        let models = list(&bench.opts).unwrap();
        assert_eq!((models.len(), models[0].files), (1, 3), "{models:?}");
        remove(&models[0].name, &bench.opts).unwrap();
        bench.assert_nothing_final();
    }
}

#[test]
fn removing_keeps_what_another_snapshot_has() {
    let bytes = model(5000);
    let server = Hub::of(&[(FILE, bytes.clone()), ("m-Q8_0.gguf", model(70))]).start();
    let bench = Bench::new(&server.url());
    for spec in ["hf:o/r:Q4_0", "hf:o/r:Q8_0", "hf:o/r@v1:Q4_0"] {
        bench.resolve(&parse(spec)).unwrap();
    }
    let names: Vec<String> = list(&bench.opts).unwrap().into_iter().map(|m| m.name).collect();
    assert_eq!(names, ["hf:o/r/d/m-Q4_0.gguf", "hf:o/r/m-Q8_0.gguf", "hf:o/r@v1/d/m-Q4_0.gguf"]);
    let error = remove("hf:o/r", &bench.opts).unwrap_err();
    assert!(error.to_string().contains("hf:o/r/m-Q8_0.gguf"), "{error}");
    let gone = remove("hf:o/r:Q4_0", &bench.opts).unwrap();
    assert_eq!(gone, [repo(&bench).join("snapshots").join(COMMITS[0]).join(FILE)]);
    assert!(bench.notes.all().contains("another snapshot"), "{}", bench.notes.all());
    let blob = repo(&bench).join("blobs").join(sha256(&bytes));
    assert_eq!(fs::read(&blob).unwrap(), bytes);
    assert_eq!(remove("hf:o/r@v1/d/m-Q4_0.gguf", &bench.opts).unwrap().len(), 2);
    assert!(!blob.exists() && !repo(&bench).join("refs/v1").exists());
    assert!(bench.resolve(&parse("hf:o/r:Q8_0")).is_ok());
    assert!(matches!(remove("hf:o/r:Q4_0", &bench.opts), Err(SourceError::NotCached(_))));
}

#[test]
fn broken_downloads_are_resumed_removed_and_never_linked() {
    let bytes = model(5000);
    let spec = parse("hf:o/r:Q4_0");
    for resume in [true, false] {
        let server = Hub { drops: Some(FILE), ..Hub::of(&[(FILE, bytes.clone())]) }.start();
        let mut bench = Bench::new(&server.url());
        bench.opts.retries = 0;
        assert!(matches!(bench.resolve(&spec), Err(SourceError::Dropped { got: 2500, .. })));
        bench.assert_nothing_final();
        let part = repo(&bench).join("blobs").join(sha256(&bytes) + ".part");
        assert!(part.exists() && !repo(&bench).join("refs").exists());
        if resume {
            // The same bytes at another commit.
            let path = bench.resolve(&parse("hf:o/r@v1:Q4_0")).unwrap();
            assert_eq!(fs::read(path).unwrap(), bytes);
            assert_eq!(server.seen().last().unwrap().range(), Some(2500));
        } else {
            assert_eq!(remove("hf:o/r:Q4_0", &bench.opts).unwrap(), std::slice::from_ref(&part));
        }
        assert!(!part.exists());
    }
}

#[test]
fn threads_at_once_fetch_a_blob_once() {
    let bytes = model(400_000);
    let server = Hub::of(&[(FILE, bytes.clone())]).start();
    let bench = Bench::new(&server.url());
    thread::scope(|scope| {
        let all: Vec<_> = (0..4).map(|_| scope.spawn(|| bench.resolve(&parse("hf:o/r")).unwrap())).collect();
        for path in all {
            assert_eq!(fs::read(path.join().unwrap()).unwrap(), bytes);
        }
    });
    assert_eq!(server.seen().iter().filter(|r| r.path.starts_with("/cdn")).count(), 1);
}
