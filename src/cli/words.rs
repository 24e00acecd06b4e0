//! The word count that `run wordcount` runs and `bench words` measures.

use crate::api::{Environment, Stream};
use crate::config::Config;
use crate::operator::chain::Chain;
use crate::operator::words::Words;
use crate::source::SourceContext;
use crate::source::text::{TextOptions, TextPlan};
use tidegate_shard::topology;

/// Bytes of text in one record: some hundred words, for which less than a segment goes out.
const BLOCK_BYTES: usize = 2048;

/// How text is read of which only the words count.
pub(super) fn text_options(config: &Config) -> TextOptions {
    TextOptions {
        strict: config.strict_utf8(),
        line_bytes_max: config.max_record_size() as usize,
        block_bytes: BLOCK_BYTES.min(config.segment_size() as usize / 16),
        ..TextOptions::default()
    }
}

/// The words of a text.
pub(super) fn text_words(env: &Environment, text: &TextPlan) -> Stream<String, impl Chain<String>> {
    let source = text.clone();
    let mut words = Words::default();
    env.source("text", move |cx: &SourceContext| Ok(source.source(cx)))
        .flat_map::<String, _>(move |text, out| words.find(text, |batch| out.emit_all(batch)))
        .name("words")
}

/// Each word of a text with its count, once all is read.
pub(super) fn counts_at_end(
    env: &Environment,
    text: &TextPlan,
    parallelism: u32,
) -> Stream<(String, u64), impl Chain<(String, u64)>> {
    text_words(env, text)
        .combine::<String, u64, _, _>(|word| word, |_, count| *count += 1)
        .key_by::<String, _>(|(word, _)| word)
        .parallelism(parallelism)
        .aggregate_at_end::<u64, _>(|(_, part), count| *count += part)
        .name("count")
}

/// `word<TAB>count`.
pub(super) fn row((word, count): (&str, u64), row: &mut Vec<u8>) {
    row.extend_from_slice(word.as_bytes());
    row.push(b'\t');
    row.extend_from_slice(itoa::Buffer::new().format(count).as_bytes());
    row.push(b'\n');
}

/// The parallelism of text and count: where nobody says, one instance a shard, as for every job.
pub(super) fn parallelism(config: &Config) -> std::io::Result<u32> {
    match config.shards() {
        _ if config.is_set("parallelism.default") => Ok(config.parallelism()),
        Some(shards) => Ok(shards),
        None => Ok(topology::allowed_cores()?.len() as u32),
    }
}
