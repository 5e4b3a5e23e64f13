"""Routes that Spark uses: pipelines and sinks."""
