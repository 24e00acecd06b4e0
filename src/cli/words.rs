//! The word count that `run wordcount` runs and `bench words` measures.

use crate::api::{Environment, Stream};
use crate::config::Config;
use crate::operator::chain::Chain;
use crate::operator::words::words;
use crate::source::SourceContext;
use crate::source::text::TextPlan;
use tidegate_shard::topology;

/// The words of a text.
pub(super) fn text_words(env: &Environment, text: &TextPlan) -> Stream<String, impl Chain<String>> {
    let source = text.clone();
    let mut scratch = String::new();
    env.source("text", move |cx: &SourceContext| Ok(source.source(cx)))
        .flat_map::<String, _>(move |line, out| words(line, &mut scratch, |word| out.emit(word)))
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
