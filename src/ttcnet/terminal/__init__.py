"""What commands print: lines, tables and progress bars."""
